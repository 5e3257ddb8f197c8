// SPDX-License-Identifier: Apache-2.0
// What the consumers of KV events accept, one row each, and which of them every profile must please. Payloads are read
// with another msgpack library than the one that kvwire has in itself.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <msgpack.hpp>

#include "wire_test_support.h"

namespace kvwire {

namespace {

using Switches = KVEventsConfig::Extensions;
using Complaints = std::vector<std::string>;
using Names = std::vector<std::string>;

constexpr std::int64_t kMinInt64 = std::numeric_limits<std::int64_t>::min();
constexpr std::uint64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kMaxUint32 = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t kMaxUint64 = std::numeric_limits<std::uint64_t>::max();

enum class Shapes { kMap, kArray, kBoth };
enum class Widths { kAny, kNineBytes };
enum class ByteHashes { kRefused, kTaken };

// Elements of an array event, the tag included.
struct Lengths {
  std::uint32_t least;
  std::uint32_t most;
};
constexpr std::uint32_t kAnyMore = kMaxUint32;

struct Consumer {
  std::string name;
  Shapes shapes;
  std::vector<Lengths> stored_lengths;
  Lengths removed_lengths;
  // Keys that a map event must have, nil or not, besides "type" and "block_hashes".
  Names stored_keys;
  Names removed_keys;
  ByteHashes byte_hashes;
  std::int64_t least_hash;
  std::uint64_t most_hash;
  Widths hash_widths;
  std::uint64_t most_token;
  Names media;  // empty: any text
};

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

const Consumer& ConsumerCalled(const std::string& name) {
  const auto* const found = std::ranges::find(kConsumers, name, &Consumer::name);
  REQUIRE_MESSAGE(found != std::end(kConsumers), name);
  return *found;
}

// What must hold of a profile in one of its hash forms: who accepts every payload, and who refuses some, which shows
// that the rows tell the profiles apart.
struct Promise {
  std::string profile;
  HashForm hash_form;
  Names accepted_by;
  Names refused_by;
};

const Promise kPromises[] = {
    {"vllm",
     HashForm::kUint64,
     {"vLLM example", "Mooncake conductor", "SMG", "Dynamo"},
     {"llm-d", "AIBrix", "kthena", "sgl-router", "llm-d, SGLang adapter"}},
    {"vllm",
     HashForm::kBytes,
     {"vLLM example", "llm-d", "Mooncake conductor", "SMG"},
     {"Dynamo", "sgl-router", "xLLM service"}},
    {"vllm-0.22",
     HashForm::kUint64,
     {"old vLLM example", "kthena", "AIBrix"},
     {"vLLM example", "llm-d, SGLang adapter", "Dynamo"}},
    {"vllm-0.22", HashForm::kBytes, {"llm-d"}, {"old vLLM example", "kthena", "AIBrix"}},
    {"llm-d",
     HashForm::kUint64,
     {"llm-d", "vLLM example", "Mooncake conductor", "SMG", "Dynamo"},
     {"AIBrix", "kthena", "llm-d, SGLang adapter"}},
    {"llm-d", HashForm::kBytes, {"llm-d", "vLLM example", "Mooncake conductor", "SMG"}, {"Dynamo"}},
    {"dynamo", HashForm::kUint64, {"Dynamo", "vLLM example"}, {"llm-d", "AIBrix"}},
    {"aibrix",
     HashForm::kUint64,
     {"AIBrix", "kthena", "old vLLM example", "Dynamo"},
     {"llm-d", "vLLM example", "Mooncake conductor"}},
    {"kthena", HashForm::kUint64, {"kthena", "AIBrix", "old vLLM example"}, {"vLLM example", "SMG"}},
    {"xllm", HashForm::kUint64, {"xLLM service"}, {"Dynamo", "llm-d", "AIBrix"}},
    {"sglang",
     HashForm::kFirstInt64,
     {"llm-d, SGLang adapter", "sgl-router", "llm-d", "Dynamo"},
     {"vLLM example", "Mooncake conductor"}},
    {"trtllm", HashForm::kUint64, {"vLLM example", "Mooncake conductor", "SMG", "Dynamo"}, {"AIBrix", "llm-d"}},
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

// Hashes of 8 and of 32 bytes; as integers small, medium, above 2^63 and, where they are signed, negative.
std::vector<BlockHash> MixedHashes() {
  std::vector<BlockHash> hashes = {H(5), H(0xfffffffe), H(0x0102030405060708), H(0x8000000000000001),
                                   H(~std::uint64_t{0})};
  for (const char* hex : {"0000000000000007000000000000000000000000000000000000000000000009",
                          "f00000000000000100000000000000000000000000000000f1f2f3f4f5f6f7f8",
                          "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"}) {
    hashes.push_back(*BlockHash::FromBytes(FromHex(hex)));
  }
  return hashes;
}

// Every kind of event with every kind of field, in small batches, and all together in a last one. `media` are the tiers
// that the blocks are in.
std::vector<KVEventBatch> MixedBatches(const Names& media) {
  const std::vector<BlockHash> hashes = MixedHashes();
  const std::vector<TokenId> tokens = {0, 127, 128, 65536, kMaxTokenId, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const std::vector<ExtraKeys> keys = {ExtraKeys{std::string("salt"), MultimodalKey{"image", 3}}, ExtraKeys{}};
  std::vector<KVEventBatch> batches;
  KVEventBatch all;
  const auto add = [&](const auto& event) {
    KVEventBatch batch;
    batch.ts = 1700000000.25;
    batch.data_parallel_rank = static_cast<std::int64_t>(batches.size() % 3);
    batch.Add(event);
    batches.push_back(std::move(batch));
    all.Add(event);
  };
  std::size_t turn = 0;
  for (const std::string& medium : media) {
    for (std::size_t first = 0; first + 2 <= hashes.size(); ++first) {
      for (const bool with_tokens : {true, false}) {
        for (const int group_fields : {0, 1, 2, 3}) {
          ++turn;
          BlockStored stored;
          stored.block_hashes = std::span(hashes).subspan(first, 2);
          if (turn % 2 == 0) stored.parent_block_hash = hashes[turn % hashes.size()];
          if (with_tokens) stored.token_ids = tokens;
          stored.block_size = 8;
          stored.medium = medium;
          if (turn % 3 == 0) stored.lora_id = 7;
          if (turn % 3 != 1) stored.lora_name = "adapter";
          if (turn % 4 != 0)
            stored.extra_keys = {false,
                                 turn % 4 == 1 ? std::span<const ExtraKeys>(keys) : std::span<const ExtraKeys>()};
          if (group_fields > 0) stored.group_idx = static_cast<std::uint32_t>(group_fields - 1);
          if (group_fields > 1) stored.kv_cache_spec_kind = "full_attention";
          if (group_fields > 2) stored.kv_cache_spec_sliding_window = 128;
          add(stored);
        }
      }
      BlockRemoved removed;
      removed.block_hashes = std::span(hashes).subspan(first, 1 + first % 2);
      removed.medium = medium;
      if (first % 2 == 0) removed.group_idx = 0;
      add(removed);
    }
  }
  add(AllBlocksCleared{});
  all.ts = 1700000001.5;
  all.data_parallel_rank = 0;
  batches.push_back(std::move(all));
  return batches;
}

// What a consumer complains of in the mixed batches, each complaint once.
Complaints ComplaintsOf(const std::string& consumer, const Switches& switches) {
  std::set<std::string> complaints;
  // A host has no third tier to tell the xLLM service of.
  const Names media = consumer == "xLLM service" ? Names{"GPU", "CPU"} : Names{"GPU", "CPU", "STORAGE"};
  Judge judge(ConsumerCalled(consumer));
  for (const KVEventBatch& batch : MixedBatches(media)) {
    const Complaints of_payload = judge.Complain(Encode(batch, switches));
    complaints.insert(of_payload.begin(), of_payload.end());
  }
  return {complaints.begin(), complaints.end()};
}

Switches SwitchesFor(const Promise& promise) {
  Switches switches = SwitchesOf(promise.profile);
  switches.hash_form = promise.hash_form;
  return switches;
}

std::string Joined(const Complaints& complaints) {
  std::string text;
  for (const std::string& complaint : complaints) text += (text.empty() ? "" : "; ") + complaint;
  return text;
}

}  // namespace

TEST_CASE("every payload of a profile is one that the profile's consumers accept") {
  for (const Promise& promise : kPromises) {
    CAPTURE(promise.profile);
    CAPTURE(static_cast<int>(promise.hash_form));
    for (const std::string& consumer : promise.accepted_by) {
      CAPTURE(consumer);
      CHECK(Joined(ComplaintsOf(consumer, SwitchesFor(promise))) == "");
    }
  }
}

TEST_CASE("the rows tell consumers apart: whom a profile is not for refuses some of its payloads") {
  for (const Promise& promise : kPromises) {
    CAPTURE(promise.profile);
    CAPTURE(static_cast<int>(promise.hash_form));
    for (const std::string& consumer : promise.refused_by) {
      CAPTURE(consumer);
      CHECK(Joined(ComplaintsOf(consumer, SwitchesFor(promise))) != "");
    }
  }
}

TEST_CASE("every profile of the configuration, in every hash form that it leaves open, has a promise") {
  std::set<std::pair<std::string, HashForm>> promised;
  for (const Promise& promise : kPromises) promised.emplace(promise.profile, promise.hash_form);
  const Names profiles = AllProfiles();
  CHECK(profiles.size() >= 9);
  std::set<std::pair<std::string, HashForm>> possible;
  for (const std::string& profile : profiles) {
    // A profile that leaves the form open keeps what the environment chose.
    for (const HashForm form : {HashForm::kUint64, HashForm::kBytes}) {
      Switches switches;
      switches.hash_form = form;
      REQUIRE(ApplyProfile(profile, &switches));
      possible.emplace(profile, switches.hash_form);
    }
  }
  CHECK(promised == possible);
}

TEST_CASE("a profile with one switch turned is refused by the consumer that needs the switch") {
  struct Case {
    std::string profile;
    std::string consumer;
    void (*turn)(Switches*);
    std::string complaint;
  };
  const Case cases[] = {
      {"sglang", "llm-d, SGLang adapter", [](Switches* s) { s->array_tail = ArrayTail::kFull; },
       "BlockRemoved of 4 elements; BlockStored of 12 elements"},
      {"sglang", "llm-d, SGLang adapter", [](Switches* s) { s->wide_hashes = WideHashes::kMinimal; },
       "a hash in fewer than nine bytes"},
      {"sglang", "sgl-router", [](Switches* s) { s->hash_form = HashForm::kUint64; }, "a hash above the largest"},
      {"llm-d", "llm-d", [](Switches* s) { s->wide_hashes = WideHashes::kMinimal; }, "a hash in fewer than nine bytes"},
      {"vllm", "Mooncake conductor", [](Switches* s) { s->hash_form = HashForm::kInt64; }, "a negative hash"},
      {"vllm", "vLLM example", [](Switches* s) { s->event_format = EventFormat::kArray; }, "an array event"},
      {"dynamo", "Dynamo", [](Switches* s) { s->hash_form = HashForm::kBytes; }, "a hash as bytes"},
      {"dynamo", "Dynamo", [](Switches* s) { s->medium_cpu = "cpu"; }, "medium cpu"},
      {"aibrix", "Dynamo", [](Switches* s) { s->array_tail = ArrayTail::kFull; },
       "BlockRemoved of 4 elements; BlockStored of 12 elements"},
      {"aibrix", "AIBrix", [](Switches* s) { s->event_format = EventFormat::kMap; }, "a map event"},
      {"kthena", "kthena", [](Switches* s) { s->hash_form = HashForm::kBytes; }, "a hash as bytes"},
      {"xllm", "xLLM service", [](Switches* s) { s->hash_form = HashForm::kInt64; }, "a negative hash"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.profile);
    CAPTURE(c.consumer);
    Switches switches = SwitchesOf(c.profile);
    CHECK(Joined(ComplaintsOf(c.consumer, switches)) == "");
    c.turn(&switches);
    CHECK(Joined(ComplaintsOf(c.consumer, switches)) == c.complaint);
  }
}

TEST_CASE("a batch without a rank, or with bytes behind it, is refused by every row") {
  KVEventBatch batch;
  batch.Add(AllBlocksCleared{});
  Bytes trailing;
  for (const Consumer& consumer : kConsumers) {
    CAPTURE(consumer.name);
    CHECK(Joined(Judge(consumer).Complain(Encode(batch))).find("the rank is not an integer") != std::string::npos);
    batch.data_parallel_rank = 0;
    trailing = Encode(batch);
    trailing.push_back(0xc0);
    CHECK(Joined(Judge(consumer).Complain(trailing)).find("bytes after the batch") != std::string::npos);
    batch.data_parallel_rank.reset();
  }
}

}  // namespace kvwire
