// SPDX-License-Identifier: Apache-2.0
// What a ROUTER answers to a hello, a digest request and a snapshot request, as the consumer's side reads it. The input
// is messages: each a byte that says what it is, a byte with its number, two bytes with the payload's length,
// big-endian, and so many bytes, or what is left of them.
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kv_events/subscribe/hello_client.h"
#include "kv_events/subscribe/snapshot_client.h"
#include "kv_events/wire/decoder.h"
#include "kv_events/wire/extensions.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/other_msgpack.h"

namespace kvwire::fuzz {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::size_t kMaxMessages = 64;
constexpr std::size_t kMaxEntries = 1024;
constexpr std::size_t kMaxMediumBytes = 256;
constexpr MonotonicNanos kIdle = 1000;

// What the first byte of a message stands for, modulo their number.
enum Kind : std::uint8_t {
  kHello,
  kDigest,
  kChunk,
  kEnd,
  kUnknownName,
  kBatch,
  kEndMark,
  kLegacyEndMark,
  kFewFrames,
  kKinds
};

std::vector<std::uint8_t> Copy(std::string_view text) { return {text.begin(), text.end()}; }

InFrames MessageOf(std::uint8_t kind, SequenceNumber number, Bytes payload) {
  static constexpr std::string_view kNames[] = {kHelloName,       kDigestName,   kChunkName,
                                                kSnapshotEndName, kSnapshotName, "kv"};
  const auto sequence = [](SequenceNumber value) {
    const SequenceFrame frame = EncodeSequence(value);
    return std::vector<std::uint8_t>(frame.begin(), frame.end());
  };
  switch (kind) {
    case kEndMark:
      return {{}, {}, sequence(kEndOfReplay), {}};
    case kLegacyEndMark:
      return {{}, sequence(kEndOfReplay), {}};
    case kFewFrames:
      return {{payload.begin(), payload.end()}, {}};
    default:
      return {{}, Copy(kNames[kind]), sequence(number), {payload.begin(), payload.end()}};
  }
}

std::vector<InFrames> MessagesOf(Bytes input) {
  std::vector<InFrames> messages;
  while (input.size() >= 4 && messages.size() < kMaxMessages) {
    const auto kind = static_cast<std::uint8_t>(input[0] % kKinds);
    const SequenceNumber number = input[1] == 0xff ? kEndOfReplay : input[1];
    const std::size_t declared = std::size_t{input[2]} << 8 | input[3];
    input = input.subspan(4);
    const std::size_t length = std::min(declared, input.size());
    messages.push_back(MessageOf(kind, number, input.first(length)));
    input = input.subspan(length);
  }
  return messages;
}

void CheckError(const DecodeError& error, std::size_t size) {
  KVWIRE_PROMISE(error.offset <= size);
  KVWIRE_PROMISE(IsOneLine(error.message));
  KVWIRE_PROMISE(!error.path.empty() && error.message.find(error.path) != std::string::npos);
}

void CheckEntries(const DigestEntries& entries) {
  KVWIRE_PROMISE(entries.size() <= kMaxEntries);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    KVWIRE_PROMISE(entries[i].medium.size() <= kMaxMediumBytes);
    if (i == 0) continue;
    KVWIRE_PROMISE(std::pair(entries[i - 1].group, std::string_view(entries[i - 1].medium)) <
                   std::pair(entries[i].group, std::string_view(entries[i].medium)));
  }
}

// What the other library has under a digest's entries.
void CheckSameEntries(const DigestEntries& entries, const msgpack::object& array) {
  KVWIRE_PROMISE(array.type == msgpack::type::ARRAY && ElementsOf(array).size() == entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const msgpack::object& entry = ElementsOf(array)[i];
    KVWIRE_PROMISE(entry.type == msgpack::type::ARRAY && ElementsOf(entry).size() == 4);
    const std::span<const msgpack::object> fields = ElementsOf(entry);
    KVWIRE_PROMISE(BitsOf(fields[0]) == entries[i].group);
    KVWIRE_PROMISE(fields[1].type == msgpack::type::STR && TextOf(fields[1]) == entries[i].medium);
    KVWIRE_PROMISE(BitsOf(fields[2]) == entries[i].count);
    KVWIRE_PROMISE(BitsOf(fields[3]) == entries[i].sum);
  }
}

void CheckDigest(Bytes payload) {
  const auto entries = DecodeDigest(payload);
  if (!entries) return CheckError(entries.error(), payload.size());
  CheckEntries(*entries);
  KVWIRE_PROMISE(StructureOf(payload).fills(payload.size()));
  CheckSameEntries(*entries, OtherValue(payload).get());
  std::vector<std::uint8_t> bytes;
  EncodeDigest(*entries, &bytes);
  KVWIRE_PROMISE(DecodeDigest(bytes) == entries.value());
}

void CheckHello(Bytes payload) {
  const auto hello = DecodeHello(payload);
  if (!hello) return CheckError(hello.error(), payload.size());
  if (hello->digest) CheckEntries(*hello->digest);
  KVWIRE_PROMISE(StructureOf(payload).fills(payload.size()));
  const msgpack::object_handle other = OtherValue(payload);
  KVWIRE_PROMISE(other->type == msgpack::type::MAP);
  const auto bits = [&](std::string_view key) {
    const msgpack::object* const value = Find(other.get(), key);
    KVWIRE_PROMISE(value != nullptr);
    return BitsOf(*value);
  };
  KVWIRE_PROMISE(bits("epoch") == hello->epoch);
  KVWIRE_PROMISE(bits("data_parallel_rank") == static_cast<std::uint64_t>(hello->data_parallel_rank));
  KVWIRE_PROMISE(bits("first") == hello->first);
  KVWIRE_PROMISE(bits("next") == hello->next);
  KVWIRE_PROMISE(!hello->oldest || bits("oldest") == *hello->oldest);
  KVWIRE_PROMISE(bits("heartbeat_interval_ms") == hello->heartbeat_interval_ms);
  if (hello->digest) CheckSameEntries(*hello->digest, *Find(other.get(), "digest"));
  std::vector<std::uint8_t> bytes;
  EncodeHello(*hello, &bytes);
  KVWIRE_PROMISE(DecodeHello(bytes) == hello.value());
}

// A DEALER to which the answer has come already; takes whatever is sent.
class AnsweredLink final : public FrameLink {
 public:
  explicit AnsweredLink(std::span<const InFrames> answer) : answer_(answer) {}

  SendResult TrySend(std::span<const OutFrame> /*frames*/) noexcept override { return SendResult::kSent; }
  std::optional<InFrames> TryReceive() override {
    if (answer_.empty()) return std::nullopt;
    InFrames frames = answer_.front();
    answer_ = answer_.subspan(1);
    return frames;
  }
  std::string endpoint() const override { return "answered"; }

 private:
  std::span<const InFrames> answer_;
};

ReplayLinkFactory LinksTo(std::span<const InFrames> answer) {
  return [answer] { return std::make_unique<AnsweredLink>(answer); };
}

// The first message decides, or the silence after none.
void CheckHelloClient(std::span<const InFrames> answer) {
  HelloClient client(LinksTo(answer), kIdle);
  client.Start(0);
  Hello hello;
  HelloClient::Outcome outcome = client.Poll(0, &hello);
  KVWIRE_PROMISE((outcome == HelloClient::Outcome::kNothing) == answer.empty());
  if (answer.empty()) outcome = client.Poll(kIdle, &hello);
  KVWIRE_PROMISE((outcome == HelloClient::Outcome::kSilent) == answer.empty());
  KVWIRE_PROMISE(!client.active());
  if (answer.empty()) return;
  const InFrames& first = answer.front();
  const bool named = first.size() == 4 && first[1] == Copy(kHelloName);
  const auto expected = DecodeHello(first.back());
  KVWIRE_PROMISE((outcome == HelloClient::Outcome::kHello) == (named && expected));
  if (outcome == HelloClient::Outcome::kHello) KVWIRE_PROMISE(hello == *expected);
}

// Stored blocks only, after at most one clear.
void CheckPiece(const SnapshotPiece& piece) {
  if (piece.digest) CheckEntries(*piece.digest);
  const KVEventBatch& batch = piece.blocks.batch;
  KVWIRE_PROMISE(piece.blocks.rejected_total == 0);
  KVWIRE_PROMISE(!piece.end || batch.empty());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const KVEventBatch::Event event = batch.at(i);
    KVWIRE_PROMISE(std::holds_alternative<BlockStored>(event) ||
                   (i == 0 && std::holds_alternative<AllBlocksCleared>(event)));
  }
}

// Pieces with rising numbers, then one end: that of the snapshot, of the publisher's patience, or of ours.
void CheckSnapshotClient(std::span<const InFrames> answer, ReplayForm form) {
  SnapshotLimits limits;
  limits.idle = kIdle;
  SnapshotClient client(LinksTo(answer), form, limits, {});
  client.Start(0, 0);
  SequenceNumber last = 0;
  std::size_t pieces = 0;
  bool ended = false;
  while (client.active()) {
    SnapshotPiece piece;
    SnapshotClient::Outcome outcome = client.Poll(0, &piece);
    if (outcome == SnapshotClient::Outcome::kNothing) {
      outcome = client.Poll(kIdle, &piece);
      KVWIRE_PROMISE(outcome == SnapshotClient::Outcome::kFailed);
    }
    KVWIRE_PROMISE(!ended);
    if (outcome != SnapshotClient::Outcome::kPiece) {
      KVWIRE_PROMISE(outcome != SnapshotClient::Outcome::kRefused || pieces == 0);
      KVWIRE_PROMISE(!client.active());
      return;
    }
    CheckPiece(piece);
    KVWIRE_PROMISE(pieces == 0 || piece.number >= last);
    last = piece.number;
    ended = piece.end;
    KVWIRE_PROMISE(++pieces <= answer.size() + 1);
  }
  KVWIRE_PROMISE(ended);
}

}  // namespace
}  // namespace kvwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvwire;
  const std::vector<InFrames> answer = fuzz::MessagesOf({data, size});
  for (const InFrames& message : answer) {
    const std::vector<FrameView> views(message.begin(), message.end());
    if (const auto told = ParseExtensionMessage(views)) KVWIRE_PROMISE(told->payload.size() == message.back().size());
    fuzz::CheckHello(message.back());
    fuzz::CheckDigest(message.back());
  }
  fuzz::CheckHelloClient(answer);
  for (const ReplayForm form : {ReplayForm::kHistory, ReplayForm::kState}) fuzz::CheckSnapshotClient(answer, form);
  return 0;
}
