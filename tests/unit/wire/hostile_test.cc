// SPDX-License-Identifier: Apache-2.0
#include <random>
#include <string>

#include <doctest/doctest.h>

#include "kv_events/wire/extensions.h"
#include "tests/support/allocation_counter.h"
#include "wire_test_support.h"

namespace kvwire {

namespace {

// The peak of what decoding allocates, result included.
template <class Check>
std::size_t PeakOfDecoding(const Bytes& payload, const Check& check) {
  const std::size_t before = test::LiveBytes();
  test::ResetPeak();
  const auto decoded = DecodeBatch(payload);
  const std::size_t peak = test::PeakBytes() - before;
  check(decoded);
  return peak;
}

using Outcome = tl::expected<DecodedBatch, DecodeError>;

// Every outcome is a batch, whose rejections are named, or a named error.
void CheckOutcome(const Outcome& outcome, std::size_t size) {
  const auto check_error = [size](const DecodeError& error) {
    REQUIRE(error.offset <= size);
    REQUIRE_FALSE(error.path.empty());
    REQUIRE(error.message.find('\n') == std::string::npos);
    REQUIRE(error.message.find(error.path) != std::string::npos);
  };
  if (!outcome) {
    check_error(outcome.error());
    return;
  }
  for (const RejectedEvent& rejected : outcome->rejected) check_error(rejected.error);
  REQUIRE(outcome->map_events + outcome->array_events == outcome->batch.size());
  // Whatever was accepted can be written and read again.
  const auto again = DecodeBatch(Encode(outcome->batch));
  REQUIRE(again);
  REQUIRE(again->rejected_total == 0);
  REQUIRE(again->batch.size() == outcome->batch.size());
}

// A constant for errors, containers of fixed size and the like, then so much per byte of payload.
std::size_t AllowedPeak(std::size_t payload) { return 64 * 1024 + 256 * payload; }

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  Bytes Mutate(Bytes bytes) {
    for (std::uint64_t i = 1 + Below(4); i > 0 && !bytes.empty(); --i) {
      const auto at = static_cast<std::ptrdiff_t>(Below(bytes.size()));
      switch (Below(6)) {
        case 0:
          bytes[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(random_());
          break;
        case 1:
          bytes[static_cast<std::size_t>(at)] ^= static_cast<std::uint8_t>(1u << Below(8));
          break;
        case 2:
          bytes.erase(bytes.begin() + at);
          break;
        case 3:
          bytes.insert(bytes.begin() + at, static_cast<std::uint8_t>(random_()));
          break;
        case 4:
          bytes.resize(static_cast<std::size_t>(at));
          break;
        default:
          // A head that declares much.
          bytes[static_cast<std::size_t>(at)] = kHeads[Below(sizeof(kHeads))];
          break;
      }
    }
    return bytes;
  }
  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }

 private:
  static constexpr std::uint8_t kHeads[] = {0xdd, 0xdf, 0xdb, 0xc6, 0xc9, 0xdc, 0xde, 0xda, 0xc5, 0xc8, 0xc1,
                                            0x9f, 0x8f, 0xbf, 0xc4, 0xc7, 0xd9, 0xcf, 0xd3, 0xcb, 0xc0, 0xd8};
  std::mt19937_64 random_;
};

}  // namespace

TEST_CASE("M1: five bytes that declare billions cost a typed error and no memory") {
  for (const char* head : {"dd", "df", "c6", "db", "c9"}) {
    for (const char* count : {"80000000", "ffffffff"}) {
      // Alone, as the events, as an event, as fields of an event, and inside an extra key.
      for (const char* around :
           {"", "92c0", "92c091", "92c09192ac426c6f636b52656d6f766564", "92c09195ab426c6f636b53746f7265649101c0",
            "92c09199ab426c6f636b53746f7265649101c09002c0c0c09191", "83a27473c0a66576656e7473", "92c09182a474797065"}) {
        const std::string hex = std::string(around) + head + count;
        CAPTURE(hex);
        const std::size_t peak = PeakOfDecoding(FromHex(hex), [](const Outcome& outcome) {
          REQUIRE_FALSE(outcome);
          CHECK(outcome.error().code == DecodeErrorCode::kLimitExceeded);
        });
        CHECK(peak < std::size_t{1} << 20);
      }
    }
  }
}

TEST_CASE("M1: heads that declare billions inside each other cost a typed error and no memory") {
  for (const char* prefix :
       {"", "92c0", "92c091", "92c09199ab426c6f636b53746f7265649101c09002c0c0c0", "82a27473c0a66576656e7473"}) {
    for (const char* outer : {"dd", "df"}) {
      for (const char* inner : {"dd", "df", "c6", "db"}) {
        // As many as fit, so that the outer heads pass the look at what remains; a map's pairs take two bytes each.
        constexpr std::size_t kOuter = 40;
        constexpr std::size_t kFiller = 3000;
        Bytes payload = FromHex(prefix);
        for (std::size_t i = 0; i < kOuter; ++i) {
          const std::size_t room = 5 * (kOuter - i) + kFiller;
          const auto count = static_cast<std::uint16_t>(outer == std::string("df") ? room / 2 : room);
          for (const std::uint8_t byte : FromHex(std::string(outer) + "0000")) payload.push_back(byte);
          payload.push_back(static_cast<std::uint8_t>(count >> 8));
          payload.push_back(static_cast<std::uint8_t>(count));
        }
        for (const std::uint8_t byte : FromHex(std::string(inner) + "ffffffff")) payload.push_back(byte);
        payload.insert(payload.end(), kFiller, 0xc0);
        CAPTURE(std::string(prefix));
        CAPTURE(std::string(outer) + inner);
        const std::size_t peak = PeakOfDecoding(payload, [](const Outcome& outcome) { CHECK_FALSE(outcome); });
        CHECK(peak < std::size_t{1} << 20);
      }
    }
  }
}

TEST_CASE("M1: a hello and a digest that declare billions cost a typed error and no memory") {
  for (const char* head : {"dd", "df", "c6", "db"}) {
    // Alone; as an entry, a medium and a sum; as a key and as a digest of a hello.
    for (const char* around :
         {"", "91", "919400", "919400a347505502", "81", "81a6646967657374", "81a664696765737491"}) {
      const Bytes payload = FromHex(std::string(around) + head + "ffffffff");
      CAPTURE(ToHex(payload));
      const std::size_t before = test::LiveBytes();
      test::ResetPeak();
      const auto digest = DecodeDigest(payload);
      const auto hello = DecodeHello(payload);
      const std::size_t peak = test::PeakBytes() - before;
      CHECK_FALSE(digest);
      CHECK_FALSE(hello);
      CHECK(peak < std::size_t{1} << 20);
    }
  }
}

TEST_CASE("M1: what a producer may send within the limits is not refused for its size") {
  std::string hex = "92c09192ac426c6f636b52656d6f766564dd00010000";
  for (int i = 0; i < 65536; ++i) hex += "01";
  PeakOfDecoding(FromHex(hex), [](const Outcome& outcome) {
    REQUIRE(outcome);
    CHECK(outcome->batch.size() == 1);
  });
}

TEST_CASE("M1: payloads made of the smallest parts stay within the bound of memory per byte") {
  const auto fill = [](const std::string& head, const std::string& element, std::uint32_t count) {
    std::string hex = head + "dd";
    for (int shift = 24; shift >= 0; shift -= 8) hex += ToHex(Bytes{static_cast<std::uint8_t>(count >> shift)});
    for (std::uint32_t i = 0; i < count; ++i) hex += element;
    return FromHex(hex);
  };
  const std::string stored = "92c09199ab426c6f636b53746f726564";
  const Bytes payloads[] = {
      fill("92c0", "c0", 50000),                                    // events that are nil
      fill("92c0", "80", 50000),                                    // and empty maps
      fill("92c0", "91b0416c6c426c6f636b73436c6561726564", 50000),  // and clears
      fill("92c0", "92ac426c6f636b52656d6f76656490", 50000),        // and removals of nothing
      fill("92c09192ac426c6f636b52656d6f766564", "01", 50000),      // hashes
      fill("92c09195ab426c6f636b53746f72656490c0", "01", 50000),    // tokens, then the end is missing
      fill(stored + "9101c09002c0c0c091", "c0", 50000),             // extra keys of one block
      fill(stored + "90c09002c0c0c0", "9100", 50000),               // extra keys of many blocks
  };
  for (const Bytes& payload : payloads) {
    CAPTURE(ToHex(std::span(payload).first(40)));
    const std::size_t peak =
        PeakOfDecoding(payload, [&](const Outcome& outcome) { CheckOutcome(outcome, payload.size()); });
    CHECK(peak < AllowedPeak(payload.size()));
  }
}

TEST_CASE("M4: 40,000 mutations of golden payloads give a batch or a named error, in bounded memory") {
  std::vector<Bytes> seeds;
  for (const auto& golden : GoldenPayloads()) seeds.push_back(golden.second);
  std::mt19937_64 random(7);
  for (const EventFormat format : {EventFormat::kMap, EventFormat::kArray}) {
    for (int i = 0; i < 10; ++i) {
      KVEventsConfig::Extensions switches;
      switches.event_format = format;
      Bytes payload = Encode(RandomBatch(&random), switches);
      if (payload.size() < 4000) seeds.push_back(std::move(payload));
    }
  }
  Mutator mutator(42);
  std::size_t batches = 0;
  std::size_t rejections = 0;
  std::size_t errors = 0;
  for (int i = 0; i < 40000; ++i) {
    const Bytes payload = mutator.Mutate(seeds[mutator.Below(seeds.size())]);
    const std::size_t peak = PeakOfDecoding(payload, [&](const Outcome& outcome) {
      CheckOutcome(outcome, payload.size());
      ++(outcome ? batches : errors);
      if (outcome) rejections += outcome->rejected_total;
    });
    REQUIRE(peak < AllowedPeak(payload.size()));
  }
  // All three outcomes are met often, or the mutations test nothing.
  CHECK(batches > 2000);
  CHECK(rejections > 1000);
  CHECK(errors > 2000);
}

}  // namespace kvwire
