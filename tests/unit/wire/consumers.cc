// SPDX-License-Identifier: Apache-2.0
// Payloads are read with another msgpack library than the one that kvwire has in itself.
#include "consumers.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <msgpack.hpp>

namespace kvwire {

namespace {

constexpr std::int64_t kMinInt64 = std::numeric_limits<std::int64_t>::min();
constexpr std::uint64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kMaxUint32 = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t kMaxUint64 = std::numeric_limits<std::uint64_t>::max();

constexpr std::uint32_t kAnyMore = kMaxUint32;

const Names kVllmKeys = {"parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"};
const Names kDynamoKeys = {"token_ids", "block_size"};
const Names kDynamoMedia = {"GPU",  "DEVICE",  "CPU",      "CPU_PINNED", "CPU_TIER1", "CPU_TIER2", "DISK",
                            "NVME", "STORAGE", "EXTERNAL", "NETWORK",    "REMOTE",    "SHARED"};

// A store without tokens is no error anywhere, though it has no effect for some.
const Consumer kConsumers[] = {
    // A strict decoder of vLLM's map events.
    {.name = "vLLM example",
     .shapes = Shapes::kMap,
     .stored_lengths = {},
     .removed_lengths = {},
     .stored_keys = kVllmKeys,
     .removed_keys = {"medium"},
     .byte_hashes = ByteHashes::kTaken,
     .least_hash = kMinInt64,
     .most_hash = kMaxUint64,
     .hash_widths = Widths::kAny,
     .most_token = kMaxUint64,
     .media = {}},
    // Positional up to the medium; surplus is ignored.
    {.name = "old vLLM example",
     .shapes = Shapes::kArray,
     .stored_lengths = {{7, kAnyMore}},
     .removed_lengths = {3, kAnyMore},
     .stored_keys = {},
     .removed_keys = {},
     .byte_hashes = ByteHashes::kRefused,
     .least_hash = kMinInt64,
     .most_hash = kMaxUint64,
     .hash_widths = Widths::kAny,
     .most_token = kMaxUint64,
     .media = {}},
    {.name = "kthena",
     .shapes = Shapes::kArray,
     .stored_lengths = {{6, kAnyMore}},
     .removed_lengths = {2, kAnyMore},
     .stored_keys = {},
     .removed_keys = {},
     .byte_hashes = ByteHashes::kRefused,
     .least_hash = kMinInt64,
     .most_hash = kMaxUint64,
     .hash_widths = Widths::kAny,
     .most_token = kMaxUint64,
     .media = {}},
    // Integers count as hashes only in nine bytes.
    {.name = "llm-d",
     .shapes = Shapes::kBoth,
     .stored_lengths = {{5, kAnyMore}},
     .removed_lengths = {2, kAnyMore},
     .stored_keys = {"token_ids", "block_size"},
     .removed_keys = {},
     .byte_hashes = ByteHashes::kTaken,
     .least_hash = kMinInt64,
     .most_hash = kMaxUint64,
     .hash_widths = Widths::kNineBytes,
     .most_token = kMaxUint32,
     .media = {}},
    {.name = "llm-d, SGLang adapter",
     .shapes = Shapes::kArray,
     .stored_lengths = {{5, 9}},
     .removed_lengths = {2, 3},
     .stored_keys = {},
     .removed_keys = {},
     .byte_hashes = ByteHashes::kTaken,
     .least_hash = kMinInt64,
     .most_hash = kMaxUint64,
     .hash_widths = Widths::kNineBytes,
     .most_token = kMaxUint32,
     .media = {}},
    // Byte hashes are read, but by their first eight bytes: not the engine's integer.
    {.name = "AIBrix",
     .shapes = Shapes::kArray,
     .stored_lengths = {{5, kAnyMore}},
     .removed_lengths = {2, kAnyMore},
     .stored_keys = {},
     .removed_keys = {},
     .byte_hashes = ByteHashes::kRefused,
     .least_hash = kMinInt64,
     .most_hash = kMaxUint64,
     .hash_widths = Widths::kAny,
     .most_token = kMaxUint32,
     .media = {}},
    // A tail of one to three fields after extra_keys is read by type, that is, wrongly.
    {.name = "Dynamo",
     .shapes = Shapes::kBoth,
     .stored_lengths = {{5, 9}, {13, kAnyMore}},
     .removed_lengths = {2, 3},
     .stored_keys = kDynamoKeys,
     .removed_keys = {},
     .byte_hashes = ByteHashes::kRefused,
     .least_hash = kMinInt64,
     .most_hash = kMaxUint64,
     .hash_widths = Widths::kAny,
     .most_token = kMaxUint32,
     .media = kDynamoMedia},
    {.name = "sgl-router",
     .shapes = Shapes::kBoth,
     .stored_lengths = {{5, kAnyMore}},
     .removed_lengths = {2, kAnyMore},
     .stored_keys = {},
     .removed_keys = {},
     .byte_hashes = ByteHashes::kRefused,
     .least_hash = kMinInt64,
     .most_hash = kMaxInt64,
     .hash_widths = Widths::kAny,
     .most_token = kMaxUint64,
     .media = {}},
    {.name = "Mooncake conductor",
     .shapes = Shapes::kMap,
     .stored_lengths = {},
     .removed_lengths = {},
     .stored_keys = kVllmKeys,
     .removed_keys = {"medium"},
     .byte_hashes = ByteHashes::kTaken,
     .least_hash = 0,
     .most_hash = kMaxUint64,
     .hash_widths = Widths::kAny,
     .most_token = kMaxInt32,
     .media = {}},
    {.name = "SMG",
     .shapes = Shapes::kMap,
     .stored_lengths = {},
     .removed_lengths = {},
     .stored_keys = kVllmKeys,
     .removed_keys = {"medium"},
     .byte_hashes = ByteHashes::kTaken,
     .least_hash = kMinInt64,
     .most_hash = kMaxUint64,
     .hash_widths = Widths::kAny,
     .most_token = kMaxUint32,
     .media = {}},
    // Media without regard to case; there is no third tier.
    {.name = "xLLM service",
     .shapes = Shapes::kMap,
     .stored_lengths = {},
     .removed_lengths = {},
     .stored_keys = {"block_size"},
     .removed_keys = {},
     .byte_hashes = ByteHashes::kRefused,
     .least_hash = 0,
     .most_hash = kMaxUint64,
     .hash_widths = Widths::kAny,
     .most_token = kMaxInt32,
     .media = {"gpu", "cpu", "GPU", "CPU"}},
};

// The integer hashes of an event are packed again in nine bytes, everything else in the shortest form.
using Packer = msgpack::packer<msgpack::sbuffer>;

void PackHash(const msgpack::object& hash, Packer* packer) {
  if (hash.type == msgpack::type::POSITIVE_INTEGER) {
    packer->pack_fix_uint64(hash.via.u64);
  } else if (hash.type == msgpack::type::NEGATIVE_INTEGER) {
    packer->pack_fix_int64(hash.via.i64);
  } else {
    packer->pack(hash);
  }
}

void PackHashes(const msgpack::object& hashes, Packer* packer) {
  packer->pack_array(hashes.via.array.size);
  for (std::uint32_t i = 0; i < hashes.via.array.size; ++i) PackHash(hashes.via.array.ptr[i], packer);
}

// One event, whatever its shape: its tag, and its fields by name.
struct Event {
  Shapes shape = Shapes::kMap;
  std::uint32_t length = 0;
  std::string tag;
  std::map<std::string, msgpack::object> fields;
};

Event ReadEvent(const msgpack::object& object, Complaints* complaints) {
  static const Names kStored = {"block_hashes",
                                "parent_block_hash",
                                "token_ids",
                                "block_size",
                                "lora_id",
                                "medium",
                                "lora_name",
                                "extra_keys",
                                "group_idx",
                                "kv_cache_spec_kind",
                                "kv_cache_spec_sliding_window"};
  static const Names kRemoved = {"block_hashes", "medium", "group_idx"};
  Event event;
  if (object.type == msgpack::type::MAP) {
    event.length = object.via.map.size;
    for (std::uint32_t i = 0; i < event.length; ++i) {
      const msgpack::object_kv& pair = object.via.map.ptr[i];
      const auto key = pair.key.as<std::string>();
      if ((key == "type") != (i == 0)) complaints->push_back("type is not the first key");
      if (!event.fields.emplace(key, pair.val).second) complaints->push_back("key " + key + " twice");
    }
    event.tag = event.fields.at("type").as<std::string>();
    return event;
  }
  REQUIRE(object.type == msgpack::type::ARRAY);
  event.shape = Shapes::kArray;
  event.length = object.via.array.size;
  event.tag = object.via.array.ptr[0].as<std::string>();
  const Names& names = event.tag == "BlockStored" ? kStored : kRemoved;
  for (std::uint32_t i = 1; i < event.length && i <= names.size(); ++i) {
    event.fields.emplace(names[i - 1], object.via.array.ptr[i]);
  }
  return event;
}

// Holds one payload against a row.
class Judge {
 public:
  explicit Judge(const Consumer& consumer) : consumer_(consumer) {}

  // Why the consumer refuses the payload, or a part of it; empty if it takes all.
  Complaints Complain(const Bytes& payload) {
    complaints_.clear();
    std::size_t offset = 0;
    const msgpack::object_handle handle =
        msgpack::unpack(reinterpret_cast<const char*>(payload.data()), payload.size(), offset);
    if (offset != payload.size()) complaints_.push_back("bytes after the batch");
    const msgpack::object& root = handle.get();
    if (root.type != msgpack::type::ARRAY || root.via.array.size != 3) return {"the batch is not an array of three"};
    const msgpack::object* const parts = root.via.array.ptr;
    if (parts[0].type != msgpack::type::FLOAT64) complaints_.push_back("the time is not a float64");
    if (parts[1].type != msgpack::type::ARRAY) return {"the events are not an array"};
    if (parts[2].type != msgpack::type::POSITIVE_INTEGER) complaints_.push_back("the rank is not an integer");
    const msgpack::object_array& events = parts[1].via.array;
    std::set<Shapes> shapes;
    for (std::uint32_t i = 0; i < events.size; ++i) {
      const Event event = ReadEvent(events.ptr[i], &complaints_);
      shapes.insert(event.shape);
      CheckEvent(event);
    }
    if (shapes.size() > 1) complaints_.push_back("map and array events in one batch");
    CheckWidths(payload, root);
    return complaints_;
  }

 private:
  void Require(bool holds, const std::string& complaint) {
    if (!holds) complaints_.push_back(complaint);
  }

  void CheckEvent(const Event& event) {
    if (consumer_.shapes != Shapes::kBoth && consumer_.shapes != event.shape) {
      complaints_.push_back(event.shape == Shapes::kMap ? "a map event" : "an array event");
      return;
    }
    if (event.tag == "BlockStored") {
      CheckShape(event, consumer_.stored_lengths, consumer_.stored_keys);
      CheckStored(event);
    } else if (event.tag == "BlockRemoved") {
      CheckShape(event, {consumer_.removed_lengths}, consumer_.removed_keys);
      CheckHashes(event);
      CheckMedium(event);
    } else {
      Require(event.tag == "AllBlocksCleared", "unknown tag " + event.tag);
      Require(event.length == 1, "a clear with fields");
    }
  }

  void CheckShape(const Event& event, const std::vector<Lengths>& lengths, const Names& keys) {
    if (event.shape == Shapes::kMap) {
      for (const std::string& key : keys) Require(event.fields.contains(key), event.tag + " without " + key);
      return;
    }
    const bool fits = std::ranges::any_of(lengths, [&event](const Lengths& allowed) {
      return allowed.least <= event.length && event.length <= allowed.most;
    });
    Require(fits, event.tag + " of " + std::to_string(event.length) + " elements");
  }

  void CheckStored(const Event& event) {
    const std::uint32_t num_hashes = CheckHashes(event);
    const msgpack::object& parent = event.fields.at("parent_block_hash");
    if (!parent.is_nil()) CheckHash(parent);
    const auto block_size = event.fields.at("block_size").as<std::uint64_t>();
    const msgpack::object& tokens = event.fields.at("token_ids");
    if (tokens.type != msgpack::type::ARRAY) {
      complaints_.push_back("token_ids are not an array");
      return;
    }
    Require(tokens.via.array.size == 0 || tokens.via.array.size == num_hashes * block_size, "a wrong number of tokens");
    for (std::uint32_t i = 0; i < tokens.via.array.size; ++i) {
      const msgpack::object& token = tokens.via.array.ptr[i];
      Require(token.type == msgpack::type::POSITIVE_INTEGER && token.via.u64 <= consumer_.most_token, "a wide token");
    }
    CheckMedium(event);
    CheckText(event, "lora_name");
    CheckText(event, "kv_cache_spec_kind");
    for (const char* name : {"lora_id", "group_idx", "kv_cache_spec_sliding_window"}) {
      const auto found = event.fields.find(name);
      Require(found == event.fields.end() || found->second.is_nil() ||
                  found->second.type == msgpack::type::POSITIVE_INTEGER,
              std::string(name) + " is not an unsigned integer");
    }
    CheckExtraKeys(event, num_hashes);
  }

  void CheckExtraKeys(const Event& event, std::uint32_t num_hashes) {
    const auto found = event.fields.find("extra_keys");
    if (found == event.fields.end() || (found->second.is_nil() && event.shape == Shapes::kArray)) return;
    const msgpack::object& keys = found->second;
    if (keys.type != msgpack::type::ARRAY) {
      complaints_.push_back("extra_keys are not an array");
      return;
    }
    Require(keys.via.array.size == num_hashes, "extra_keys are not one per hash");
    for (std::uint32_t i = 0; i < keys.via.array.size; ++i) {
      const msgpack::object& entry = keys.via.array.ptr[i];
      Require(entry.is_nil() || entry.type == msgpack::type::ARRAY, "an entry of extra_keys is neither nil nor array");
    }
  }

  std::uint32_t CheckHashes(const Event& event) {
    const msgpack::object& hashes = event.fields.at("block_hashes");
    if (hashes.type != msgpack::type::ARRAY || hashes.via.array.size == 0) {
      complaints_.push_back("block_hashes are not an array, or empty");
      return 0;
    }
    for (std::uint32_t i = 0; i < hashes.via.array.size; ++i) CheckHash(hashes.via.array.ptr[i]);
    return hashes.via.array.size;
  }

  void CheckHash(const msgpack::object& hash) {
    switch (hash.type) {
      case msgpack::type::BIN:
        Require(consumer_.byte_hashes == ByteHashes::kTaken, "a hash as bytes");
        Require(hash.via.bin.size == 8 || hash.via.bin.size == 32, "a hash of an odd size");
        return;
      case msgpack::type::POSITIVE_INTEGER:
        Require(hash.via.u64 <= consumer_.most_hash, "a hash above the largest");
        return;
      case msgpack::type::NEGATIVE_INTEGER:
        Require(hash.via.i64 >= consumer_.least_hash, "a negative hash");
        return;
      default:
        complaints_.push_back("a hash is neither integer nor bytes");
    }
  }

  void CheckMedium(const Event& event) {
    CheckText(event, "medium");
    const auto found = event.fields.find("medium");
    if (found == event.fields.end() || found->second.type != msgpack::type::STR || consumer_.media.empty()) return;
    const auto medium = found->second.as<std::string>();
    Require(std::ranges::find(consumer_.media, medium) != consumer_.media.end(), "medium " + medium);
  }

  void CheckText(const Event& event, const std::string& name) {
    const auto found = event.fields.find(name);
    Require(found == event.fields.end() || found->second.is_nil() || found->second.type == msgpack::type::STR,
            name + " is not a text");
  }

  // Whether the bytes are those of the other library: all in the shortest form, or the hashes in nine bytes.
  void CheckWidths(const Bytes& payload, const msgpack::object& root) {
    msgpack::sbuffer shortest;
    msgpack::pack(shortest, root);
    msgpack::sbuffer wide;
    PackWide(root, &wide);
    const auto same = [&payload](const msgpack::sbuffer& packed) {
      return std::ranges::equal(payload, std::span(packed.data(), packed.size()),
                                [](std::uint8_t a, char b) { return a == static_cast<std::uint8_t>(b); });
    };
    Require(same(shortest) || same(wide), "bytes that are neither the shortest nor wide in the hashes alone");
    Require(consumer_.hash_widths == Widths::kAny || same(wide), "a hash in fewer than nine bytes");
  }

  static void PackWide(const msgpack::object& root, msgpack::sbuffer* out) {
    Packer packer(out);
    packer.pack_array(3);
    packer.pack(root.via.array.ptr[0]);
    const msgpack::object_array& events = root.via.array.ptr[1].via.array;
    packer.pack_array(events.size);
    for (std::uint32_t i = 0; i < events.size; ++i) PackWideEvent(events.ptr[i], &packer);
    packer.pack(root.via.array.ptr[2]);
  }

  static void PackWideEvent(const msgpack::object& event, Packer* packer) {
    if (event.type == msgpack::type::MAP) {
      packer->pack_map(event.via.map.size);
      for (std::uint32_t i = 0; i < event.via.map.size; ++i) {
        const msgpack::object_kv& pair = event.via.map.ptr[i];
        const auto key = pair.key.as<std::string>();
        packer->pack(key);
        if (key == "block_hashes") {
          PackHashes(pair.val, packer);
        } else if (key == "parent_block_hash") {
          PackHash(pair.val, packer);
        } else {
          packer->pack(pair.val);
        }
      }
      return;
    }
    const msgpack::object_array& elements = event.via.array;
    const bool stored = elements.ptr[0].as<std::string>() == "BlockStored";
    packer->pack_array(elements.size);
    for (std::uint32_t i = 0; i < elements.size; ++i) {
      if (i == 1) {
        PackHashes(elements.ptr[i], packer);
      } else if (i == 2 && stored) {
        PackHash(elements.ptr[i], packer);
      } else {
        packer->pack(elements.ptr[i]);
      }
    }
  }

  const Consumer& consumer_;
  Complaints complaints_;
};

}  // namespace

std::span<const Consumer> AllConsumers() { return kConsumers; }

const Consumer& ConsumerCalled(const std::string& name) {
  const auto* const found = std::ranges::find(kConsumers, name, &Consumer::name);
  REQUIRE_MESSAGE(found != std::end(kConsumers), name);
  return *found;
}

Complaints Complain(const Consumer& consumer, const Bytes& payload) { return Judge(consumer).Complain(payload); }

}  // namespace kvwire
