// SPDX-License-Identifier: Apache-2.0
// A payload, read twice: by the decoder and by msgpack-cxx. What the decoder reads the other reads too, with the same
// values; what the decoder calls broken msgpack is broken to the other, or nested deeper than docs/protocol.md allows.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kv_events/wire/decoder.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/other_msgpack.h"

namespace kvwire::fuzz {
namespace {

using msgpack::object;
using Bytes = std::span<const std::uint8_t>;

// Below every limit of the decoder but that of depth.
constexpr std::size_t kMaxInput = std::size_t{1} << 18;
constexpr std::uint32_t kMaxDepth = 32;
// The batch and its events, around an event.
constexpr std::uint32_t kAroundEvent = 2;

// Refused as msgpack: so it is by the other, for the same reason.
void CheckRefusal(const DecodeError& error, Bytes bytes, std::size_t origin, std::uint32_t max_depth) {
  const OtherStructure other = StructureOf(bytes);
  switch (error.code) {
    case DecodeErrorCode::kTruncated:
    case DecodeErrorCode::kLimitExceeded:
      KVWIRE_PROMISE(!other.whole);
      break;
    case DecodeErrorCode::kTooDeep:
      KVWIRE_PROMISE(!other.whole || other.depth > max_depth);
      break;
    case DecodeErrorCode::kTrailingBytes:
      KVWIRE_PROMISE(other.whole && other.end < bytes.size());
      KVWIRE_PROMISE(error.offset == origin + other.end);
      break;
    case DecodeErrorCode::kBadType:
      KVWIRE_PROMISE(error.offset >= origin && error.offset < origin + bytes.size());
      if (bytes[error.offset - origin] == 0xc1) KVWIRE_PROMISE(!other.whole);
      break;
    case DecodeErrorCode::kOutOfRange:
    case DecodeErrorCode::kMissingField:
    case DecodeErrorCode::kUnknownEvent:
    case DecodeErrorCode::kBadShape:
    case DecodeErrorCode::kInconsistent:
      break;
  }
}

// The bytes of an event that is wrapped in a bin are the only ones that the structure around it says nothing about.
void CheckRejection(const DecodeError& error, const object& event, Bytes payload) {
  const bool at_no_value = error.code == DecodeErrorCode::kBadType && payload[error.offset] == 0xc1;
  const bool structural = at_no_value || error.code == DecodeErrorCode::kTruncated ||
                          error.code == DecodeErrorCode::kTooDeep || error.code == DecodeErrorCode::kTrailingBytes ||
                          error.code == DecodeErrorCode::kLimitExceeded;
  if (!structural) return;
  KVWIRE_PROMISE(event.type == msgpack::type::BIN);
  const Bytes content = BytesOf(event);
  const auto origin = static_cast<std::size_t>(content.data() - payload.data());
  CheckRefusal(error, content, content.empty() ? error.offset : origin, kMaxDepth - kAroundEvent);
}

// The fields of one event as the other has them. Nil is as absent.
class OtherEvent {
 public:
  explicit OtherEvent(const object& event) : event_(event) {
    KVWIRE_PROMISE(event.type == msgpack::type::MAP || event.type == msgpack::type::ARRAY);
    const object* const tag = At("type", 0);
    KVWIRE_PROMISE(tag != nullptr && tag->type == msgpack::type::STR);
    tag_ = TextOf(*tag);
  }

  std::string_view tag() const { return tag_; }
  bool from_map() const { return event_.type == msgpack::type::MAP; }

  const object* Field(std::string_view name) const {
    static constexpr std::string_view kStored[] = {"block_hashes",
                                                   "parent_block_hash",
                                                   "token_ids",
                                                   "block_size",
                                                   "lora_id",
                                                   "medium",
                                                   "lora_name",
                                                   "extra_keys",
                                                   "group_idx",
                                                   "kv_cache_spec_kind",
                                                   "kv_cache_spec_sliding_window",
                                                   "locality"};
    static constexpr std::string_view kRemoved[] = {"block_hashes", "medium", "group_idx", "locality"};
    const std::span<const std::string_view> names = tag_ == "BlockStored" ? std::span<const std::string_view>(kStored)
                                                                          : std::span<const std::string_view>(kRemoved);
    const auto* const at = std::find(names.data(), names.data() + names.size(), name);
    const object* const value = At(name, 1 + static_cast<std::size_t>(at - names.data()));
    return value == nullptr || value->type == msgpack::type::NIL ? nullptr : value;
  }

  // The salt has a key of its own in maps; in arrays it is in a map at the place of the LoRA name, the last one counts.
  const object* Salt() const {
    if (from_map()) return Field("cache_salt");
    const object* const metadata = Field("lora_name");
    if (metadata == nullptr || metadata->type != msgpack::type::MAP) return nullptr;
    const object* salt = nullptr;
    for (const msgpack::object_kv& pair : PairsOf(*metadata)) {
      if (pair.key.type == msgpack::type::STR && TextOf(pair.key) == "cache_salt") salt = &pair.val;
    }
    return salt == nullptr || salt->type == msgpack::type::NIL ? nullptr : salt;
  }

  const object* LoraName() const {
    const object* const name = Field("lora_name");
    return name != nullptr && !from_map() && name->type == msgpack::type::MAP ? nullptr : name;
  }

 private:
  const object* At(std::string_view name, std::size_t position) const {
    if (from_map()) return Find(event_, name);
    const std::span<const object> elements = ElementsOf(event_);
    return position < elements.size() ? &elements[position] : nullptr;
  }

  const object& event_;
  std::string_view tag_;
};

BlockHash HashOf(const object& value, const DecodeOptions& options) {
  if (IsInteger(value)) return BlockHash::FromUint64(BitsOf(value));
  std::vector<std::uint8_t> bytes;
  if (value.type == msgpack::type::STR) {
    const std::string_view digits = TextOf(value);
    for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
      std::uint8_t byte = 0;
      KVWIRE_PROMISE(std::from_chars(&digits[i], &digits[i] + 2, byte, 16).ptr == &digits[i] + 2);
      bytes.push_back(byte);
    }
  } else {
    KVWIRE_PROMISE(value.type == msgpack::type::BIN);
    bytes.assign(BytesOf(value).begin(), BytesOf(value).end());
  }
  const Bytes all = bytes;
  const bool first = options.hash_bits == HashBits::kFirst64;
  const auto hash = BlockHash::FromBytes(first ? all.first(std::min<std::size_t>(all.size(), 8))
                                               : all.last(std::min(all.size(), BlockHash::kMaxSize)));
  KVWIRE_PROMISE(hash.has_value());
  return *hash;
}

void CheckHashes(std::span<const BlockHash> hashes, const object* field, const DecodeOptions& options) {
  KVWIRE_PROMISE(field != nullptr && field->type == msgpack::type::ARRAY);
  const std::span<const object> elements = ElementsOf(*field);
  KVWIRE_PROMISE(std::ranges::equal(hashes, elements, {}, {}, [&](const object& o) { return HashOf(o, options); }));
}

void CheckParent(const std::optional<BlockHash>& parent, const object* field, const DecodeOptions& options) {
  const bool zero = field != nullptr && IsInteger(*field) && BitsOf(*field) == 0;
  const bool none = field == nullptr || (options.zero_parent_is_none && zero);
  KVWIRE_PROMISE(parent.has_value() == !none);
  if (parent) KVWIRE_PROMISE(*parent == HashOf(*field, options));
}

// Pairs (a, b), (b, c) are a, b, c.
std::vector<std::uint64_t> TokensOf(const object* field) {
  std::vector<std::uint64_t> tokens;
  if (field == nullptr) return tokens;
  KVWIRE_PROMISE(field->type == msgpack::type::ARRAY);
  for (const object& element : ElementsOf(*field)) {
    if (element.type != msgpack::type::ARRAY) {
      tokens.push_back(BitsOf(element));
      continue;
    }
    const std::span<const object> pair = ElementsOf(element);
    KVWIRE_PROMISE(pair.size() == 2);
    if (tokens.empty()) tokens.push_back(BitsOf(pair[0]));
    KVWIRE_PROMISE(tokens.back() == BitsOf(pair[0]));
    tokens.push_back(BitsOf(pair[1]));
  }
  return tokens;
}

template <class Integer>
void CheckInteger(const std::optional<Integer>& value, const object* field) {
  KVWIRE_PROMISE(value.has_value() == (field != nullptr));
  if (!value) return;
  KVWIRE_PROMISE(static_cast<std::uint64_t>(*value) == BitsOf(*field));
  KVWIRE_PROMISE((*value < 0) == (field->type == msgpack::type::NEGATIVE_INTEGER));
}

void CheckText(const std::optional<std::string_view>& value, const object* field) {
  KVWIRE_PROMISE(value.has_value() == (field != nullptr));
  if (value) KVWIRE_PROMISE(field->type == msgpack::type::STR && *value == TextOf(*field));
}

// One value in the other's own bytes, whatever widths it came in.
OpaqueKey Repacked(const object& value) {
  msgpack::sbuffer buffer;
  msgpack::pack(buffer, value);
  return {std::string(buffer.data(), buffer.size())};
}

ExtraKey KeyOf(const object& value) {
  if (value.type == msgpack::type::STR) return std::string(TextOf(value));
  if (value.type == msgpack::type::BIN) return std::vector<std::uint8_t>(BytesOf(value).begin(), BytesOf(value).end());
  const std::span<const object> pair =
      value.type == msgpack::type::ARRAY ? ElementsOf(value) : std::span<const object>{};
  const bool named = pair.size() == 2 && pair[0].type == msgpack::type::STR && IsInteger(pair[1]);
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!named || (pair[1].type == msgpack::type::POSITIVE_INTEGER && BitsOf(pair[1]) > kMax)) return Repacked(value);
  return MultimodalKey{std::string(TextOf(pair[0])), static_cast<std::int64_t>(BitsOf(pair[1]))};
}

// The key with opaque bytes as the other writes them.
ExtraKey Normal(const ExtraKey& key) {
  const auto* const opaque = std::get_if<OpaqueKey>(&key);
  if (opaque == nullptr) return key;
  const Bytes bytes(reinterpret_cast<const std::uint8_t*>(opaque->msgpack.data()), opaque->msgpack.size());
  KVWIRE_PROMISE(StructureOf(bytes).fills(bytes.size()));
  return Repacked(OtherValue(bytes).get());
}

// Salts and multimodal items in fields of their own are keys of the first block.
void AddForeignKeys(const OtherEvent& event, std::size_t blocks, std::optional<std::vector<ExtraKeys>>* keys) {
  const auto first = [&]() -> ExtraKeys& {
    if (!*keys) keys->emplace(blocks);
    return (*keys)->front();
  };
  if (blocks == 0) return;
  const object* const items = event.from_map() ? event.Field("mm_keys") : nullptr;
  const bool empty = items == nullptr || (items->type == msgpack::type::ARRAY && ElementsOf(*items).empty()) ||
                     (items->type == msgpack::type::MAP && PairsOf(*items).empty());
  if (!empty) first().emplace_back(Repacked(*items));
  const object* const salt = event.Salt();
  if (salt == nullptr || TextOf(*salt).empty()) return;
  const ExtraKey key = std::string(TextOf(*salt));
  if (std::ranges::find(first(), key) == first().end()) first().push_back(key);
}

void CheckExtraKeys(const ExtraKeysView& view, const OtherEvent& event, std::size_t blocks) {
  std::optional<std::vector<ExtraKeys>> expected;
  if (const object* const field = event.Field("extra_keys")) {
    KVWIRE_PROMISE(field->type == msgpack::type::ARRAY && ElementsOf(*field).size() == blocks);
    expected.emplace();
    for (const object& block : ElementsOf(*field)) {
      ExtraKeys& keys = expected->emplace_back();
      if (block.type == msgpack::type::NIL) continue;
      KVWIRE_PROMISE(block.type == msgpack::type::ARRAY);
      for (const object& key : ElementsOf(block)) keys.push_back(KeyOf(key));
    }
  }
  AddForeignKeys(event, blocks, &expected);
  KVWIRE_PROMISE(view.absent == !expected.has_value());
  if (!expected) return;
  for (std::size_t i = 0; i < expected->size(); ++i) {
    const ExtraKeys none;
    const ExtraKeys& keys = view.per_block.empty() ? none : view.per_block[i];
    KVWIRE_PROMISE(std::ranges::equal(keys, (*expected)[i], {}, Normal));
  }
}

void CheckStored(const BlockStored& stored, const OtherEvent& event, const DecodeOptions& options) {
  KVWIRE_PROMISE(event.tag() == "BlockStored");
  CheckHashes(stored.block_hashes, event.Field("block_hashes"), options);
  CheckParent(stored.parent_block_hash, event.Field("parent_block_hash"), options);
  KVWIRE_PROMISE(std::ranges::equal(stored.token_ids, TokensOf(event.Field("token_ids"))));
  const object* const size = event.Field("block_size");
  KVWIRE_PROMISE(stored.block_size == (size == nullptr ? 0 : BitsOf(*size)));
  CheckInteger(stored.lora_id, event.Field("lora_id"));
  CheckText(stored.medium, event.Field("medium"));
  CheckText(stored.lora_name, event.LoraName());
  CheckExtraKeys(stored.extra_keys, event, stored.block_hashes.size());
  CheckInteger(stored.group_idx, event.Field("group_idx"));
  CheckText(stored.kv_cache_spec_kind, event.Field("kv_cache_spec_kind"));
  CheckInteger(stored.kv_cache_spec_sliding_window, event.Field("kv_cache_spec_sliding_window"));
  CheckText(stored.locality, event.Field("locality"));
  CheckText(stored.ownership, event.from_map() ? event.Field("ownership") : nullptr);
  CheckText(stored.session_id, event.from_map() ? event.Field("session_id") : nullptr);
}

void CheckRemoved(const BlockRemoved& removed, const OtherEvent& event, const DecodeOptions& options) {
  KVWIRE_PROMISE(event.tag() == "BlockRemoved");
  CheckHashes(removed.block_hashes, event.Field("block_hashes"), options);
  CheckText(removed.medium, event.Field("medium"));
  CheckInteger(removed.group_idx, event.Field("group_idx"));
  CheckText(removed.locality, event.Field("locality"));
  CheckText(removed.ownership, event.from_map() ? event.Field("ownership") : nullptr);
}

void CheckEvent(const KVEventBatch::Event& event, const object& value, const DecodeOptions& options) {
  if (value.type == msgpack::type::BIN) {
    const Bytes content = BytesOf(value);
    KVWIRE_PROMISE(StructureOf(content).fills(content.size()));
    const msgpack::object_handle inside = OtherValue(content);
    KVWIRE_PROMISE(inside->type != msgpack::type::BIN);
    return CheckEvent(event, inside.get(), options);
  }
  const OtherEvent other(value);
  if (const auto* const stored = std::get_if<BlockStored>(&event)) return CheckStored(*stored, other, options);
  if (const auto* const removed = std::get_if<BlockRemoved>(&event)) return CheckRemoved(*removed, other, options);
  KVWIRE_PROMISE(other.tag() == "AllBlocksCleared");
}

void CheckTime(const DecodedBatch& decoded, const object* time) {
  double seconds = std::numeric_limits<double>::quiet_NaN();
  if (time != nullptr && IsInteger(*time)) {
    seconds = time->type == msgpack::type::POSITIVE_INTEGER ? static_cast<double>(time->via.u64)
                                                            : static_cast<double>(time->via.i64);
    if (seconds > 1e11) seconds /= 1000;
  } else if (time != nullptr && time->type != msgpack::type::NIL) {
    KVWIRE_PROMISE(time->type == msgpack::type::FLOAT32 || time->type == msgpack::type::FLOAT64);
    seconds = time->via.f64;
  }
  KVWIRE_PROMISE(decoded.without_time == !std::isfinite(seconds));
  KVWIRE_PROMISE(decoded.batch.ts == (std::isfinite(seconds) ? seconds : 0));
}

void CheckBatch(const DecodedBatch& decoded, const object& batch, Bytes payload, const DecodeOptions& options) {
  const bool map = batch.type == msgpack::type::MAP;
  KVWIRE_PROMISE(map || batch.type == msgpack::type::ARRAY);
  KVWIRE_PROMISE(decoded.shape == (map ? BatchShape::kMap : BatchShape::kArray));
  const auto field = [&](std::string_view name, std::size_t position) -> const object* {
    const object* value = nullptr;
    if (map) {
      value = Find(batch, name);
    } else if (position < ElementsOf(batch).size()) {
      value = &ElementsOf(batch)[position];
    }
    return value == nullptr || value->type == msgpack::type::NIL ? nullptr : value;
  };
  CheckTime(decoded, field("ts", 0));
  const object* const rank = field("data_parallel_rank", 2);
  CheckInteger(decoded.batch.data_parallel_rank, rank == nullptr && map ? field("attn_dp_rank", 2) : rank);
  const object* const events = field("events", 1);
  KVWIRE_PROMISE(events != nullptr && events->type == msgpack::type::ARRAY);
  const std::span<const object> values = ElementsOf(*events);
  KVWIRE_PROMISE(values.size() == decoded.batch.size() + decoded.rejected_total);
  KVWIRE_PROMISE(decoded.rejected.size() == decoded.rejected_total);
  auto rejected = decoded.rejected.begin();
  for (std::size_t i = 0, read = 0; i < values.size(); ++i) {
    if (rejected != decoded.rejected.end() && rejected->index == i) {
      CheckRejection(rejected++->error, values[i], payload);
    } else {
      CheckEvent(decoded.batch.at(read++), values[i], options);
    }
  }
}

void CheckPayload(Bytes payload, const DecodeOptions& options) {
  const auto decoded = DecodeBatch(payload, options);
  if (!decoded) return CheckRefusal(decoded.error(), payload, 0, kMaxDepth);
  const OtherStructure other = StructureOf(payload);
  KVWIRE_PROMISE(other.fills(payload.size()));
  KVWIRE_PROMISE(other.depth <= kMaxDepth);
  CheckBatch(*decoded, OtherValue(payload).get(), payload, options);
}

}  // namespace
}  // namespace kvwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvwire;
  if (size > fuzz::kMaxInput) return 0;
  DecodeOptions options;
  options.limits.max_rejected_details = fuzz::kMaxInput;
  fuzz::CheckPayload({data, size}, options);
  options.hash_bits = HashBits::kFirst64;
  options.zero_parent_is_none = true;
  fuzz::CheckPayload({data, size}, options);
  return 0;
}
