// SPDX-License-Identifier: Apache-2.0
#include "kv_events/wire/decode_event.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include <fmt/format.h>

namespace kvwire {

namespace {

template <class Field>
constexpr std::uint32_t Bit(Field field) {
  return 1u << static_cast<unsigned>(field);
}

}  // namespace

std::string_view EventDecoder::Name(Field field) {
  static constexpr std::array<std::string_view, kFields> kNames = {"type",
                                                                   "block_hashes",
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
                                                                   "locality",
                                                                   "ownership",
                                                                   "session_id",
                                                                   "cache_salt",
                                                                   "mm_keys"};
  return kNames[static_cast<std::size_t>(field)];
}

// Producers write keys in declaration order, so the search begins behind the last one found.
EventDecoder::Field EventDecoder::Lookup(std::string_view key, Field last) {
  std::size_t index = static_cast<std::size_t>(last);
  for (std::size_t i = 0; i < kFields; ++i) {
    index = index + 1 < kFields ? index + 1 : 0;
    if (Name(static_cast<Field>(index)) == key) return static_cast<Field>(index);
  }
  return Field::kUnknown;
}

bool EventDecoder::Belongs(Field field, Kind kind) {
  constexpr std::uint32_t kRemoved = Bit(Field::kType) | Bit(Field::kBlockHashes) | Bit(Field::kMedium) |
                                     Bit(Field::kGroupIdx) | Bit(Field::kLocality) | Bit(Field::kOwnership);
  if (field == Field::kUnknown) return false;
  switch (kind) {
    case Kind::kStored:
      return true;
    case Kind::kRemoved:
      return (kRemoved & Bit(field)) != 0;
    case Kind::kCleared:
    case Kind::kUnknown:
      return field == Field::kType;
  }
  return false;
}

void EventDecoder::Fields::Clear() {
  kind = Kind::kUnknown;
  tag = {};
  from_map = false;
  seen = 0;
  hashes.clear();
  parent.reset();
  tokens.clear();
  block_size.reset();
  lora_id.reset();
  medium.reset();
  lora_name.reset();
  spec_kind.reset();
  locality.reset();
  ownership.reset();
  session_id.reset();
  cache_salt.reset();
  has_extra_keys = false;
  extra_keys.clear();
  num_keys = 0;
  mm_keys = {};
  group_idx.reset();
  sliding_window.reset();
  ignored = 0;
}

bool EventDecoder::Decode(std::size_t index) {
  const std::size_t start = context_.reader().offset();
  context_.place() = DecodePlace{};
  context_.place().event = index;
  fields_.Clear();
  if (DecodeBare()) return true;
  if (context_.broken()) return false;
  // Only this event is bad. If its end cannot be found, the message is.
  context_.reader().Rewind(start);
  if (context_.Skip(kEventDepth)) return false;
  context_.place() = DecodePlace{};
  context_.place().event = index;
  return false;
}

bool EventDecoder::DecodeBare() {
  MsgpackItem head;
  if (!context_.Next(&head)) return false;
  return (head.type == MsgpackType::kBin ? DecodeWrapped(head) : DecodeContent(head)) && Append(head.offset);
}

bool EventDecoder::DecodeWrapped(const MsgpackItem& bin) {
  MsgpackReader content(bin.bytes, context_.reader().max_depth(), context_.reader().offset() - bin.bytes.size());
  MsgpackReader* const outside = context_.Exchange(&content);
  MsgpackItem head;
  bool ok = context_.Next(&head) && DecodeContent(head);
  if (ok && content.remaining() != 0) {
    context_.place().field = {};
    ok = context_.Fail(DecodeErrorCode::kTrailingBytes, content.offset(), "the event does not fill its bin");
  }
  context_.Exchange(outside);
  context_.Mend();
  return ok;
}

// Reads all fields; nothing is appended before the whole event is known to be good.
bool EventDecoder::DecodeContent(const MsgpackItem& head) {
  fields_.from_map = head.type == MsgpackType::kMap;
  if (head.type == MsgpackType::kMap) return context_.Enter(head, kEventDepth) && DecodeMap(head);
  if (head.type == MsgpackType::kArray) return context_.Enter(head, kEventDepth) && DecodeArray(head);
  return context_.Unexpected(head, "map, array or bin");
}

// Finds the tag wherever it is, because it decides which other keys mean something; then comes back.
bool EventDecoder::FindType(std::uint64_t pairs, std::optional<MsgpackItem>* type) {
  const std::size_t start = context_.reader().offset();
  for (std::uint64_t i = 0; i < pairs; ++i) {
    std::string_view key;
    if (!context_.Key(&key, kFieldDepth)) return false;
    if (key == Name(Field::kType)) {
      MsgpackItem item;
      if (!context_.Next(&item)) return false;
      *type = item;
      break;
    }
    if (!context_.Skip(kFieldDepth)) return false;
  }
  context_.reader().Rewind(start);
  return true;
}

bool EventDecoder::ReadKind(const MsgpackItem& tag) {
  context_.place().field = Name(Field::kType);
  if (tag.type != MsgpackType::kStr) return context_.Unexpected(tag, "str");
  fields_.tag = tag;
  if (tag.text() == "BlockStored") {
    fields_.kind = Kind::kStored;
  } else if (tag.text() == "BlockRemoved") {
    fields_.kind = Kind::kRemoved;
  } else if (tag.text() == "AllBlocksCleared") {
    fields_.kind = Kind::kCleared;
  } else {
    fields_.kind = Kind::kUnknown;
  }
  return true;
}

bool EventDecoder::DecodeMap(const MsgpackItem& map) {
  std::optional<MsgpackItem> type;
  if (!FindType(map.number, &type)) return false;
  context_.place().field = Name(Field::kType);
  if (!type) return context_.Fail(DecodeErrorCode::kMissingField, map.offset, "the event has no tag");
  if (!ReadKind(*type)) return false;

  Field last = Field::kMmKeys;
  for (std::uint64_t i = 0; i < map.number; ++i) {
    const std::size_t key_offset = context_.reader().offset();
    std::string_view key;
    context_.place().field = {};
    if (!context_.Key(&key, kFieldDepth)) return false;
    const Field field = Lookup(key, last);
    if (!Belongs(field, fields_.kind)) {
      if (!Ignore()) return false;
      continue;
    }
    last = field;
    context_.place().field = Name(field);
    if ((fields_.seen & Bit(field)) != 0) {
      return context_.Fail(DecodeErrorCode::kInconsistent, key_offset, "the key is there twice");
    }
    if (!ReadField(field)) return false;
  }
  return true;
}

bool EventDecoder::DecodeArray(const MsgpackItem& array) {
  static constexpr Field kStored[] = {Field::kBlockHashes, Field::kParent,   Field::kTokenIds,      Field::kBlockSize,
                                      Field::kLoraId,      Field::kMedium,   Field::kLoraName,      Field::kExtraKeys,
                                      Field::kGroupIdx,    Field::kSpecKind, Field::kSlidingWindow, Field::kLocality};
  static constexpr Field kRemoved[] = {Field::kBlockHashes, Field::kMedium, Field::kGroupIdx, Field::kLocality};
  if (array.number == 0) return context_.Fail(DecodeErrorCode::kBadShape, array.offset, "an array without a tag");
  MsgpackItem tag;
  if (!context_.Next(&tag) || !ReadKind(tag)) return false;
  std::span<const Field> fields;
  if (fields_.kind == Kind::kStored) fields = kStored;
  if (fields_.kind == Kind::kRemoved) fields = kRemoved;
  for (std::uint64_t i = 1; i < array.number; ++i) {
    if (i > fields.size()) {
      if (!Ignore()) return false;
      continue;
    }
    const Field field = fields[static_cast<std::size_t>(i - 1)];
    context_.place().field = Name(field);
    if (!(field == Field::kLoraName ? ReadNameOrMetadata() : ReadField(field))) return false;
  }
  return true;
}

bool EventDecoder::Ignore() {
  context_.place().field = {};
  ++fields_.ignored;
  return context_.Skip(kFieldDepth);
}

bool EventDecoder::CheckStored(std::size_t offset) {
  for (const Field field : {Field::kTokenIds, Field::kBlockSize}) {
    if ((fields_.seen & Bit(field)) != 0) continue;
    context_.place().field = Name(field);
    return context_.Fail(DecodeErrorCode::kMissingField, offset, "the event must have it");
  }
  if (fields_.has_extra_keys && fields_.extra_keys.size() != fields_.hashes.size()) {
    context_.place().field = Name(Field::kExtraKeys);
    return context_.Fail(
        DecodeErrorCode::kInconsistent, offset,
        fmt::format("{} entries for {} block hashes", fields_.extra_keys.size(), fields_.hashes.size()));
  }
  return true;
}

// Salts and multimodal items of producers that have fields of their own for them. They must not get lost: without them
// the block would look like one of the same tokens alone.
void EventDecoder::AddForeignKeys() {
  const bool salted = fields_.cache_salt && !fields_.cache_salt->empty();
  if (fields_.hashes.empty() || (!salted && fields_.mm_keys.empty())) return;
  fields_.has_extra_keys = true;
  fields_.extra_keys.resize(fields_.hashes.size());
  ExtraKeys& first = fields_.extra_keys.front();
  if (!fields_.mm_keys.empty()) {
    first.emplace_back(OpaqueKey{std::string(fields_.mm_keys.begin(), fields_.mm_keys.end())});
    ++fields_.num_keys;
  }
  if (salted) {
    ExtraKey salt = std::string(*fields_.cache_salt);
    if (std::find(first.begin(), first.end(), salt) != first.end()) return;
    first.push_back(std::move(salt));
    ++fields_.num_keys;
  }
}

bool EventDecoder::AppendStored(std::size_t offset) {
  if (!CheckStored(offset)) return false;
  AddForeignKeys();
  BlockStored stored;
  stored.block_hashes = fields_.hashes;
  stored.parent_block_hash = fields_.parent;
  stored.token_ids = fields_.tokens;
  stored.block_size = fields_.block_size.value_or(0);
  stored.lora_id = fields_.lora_id;
  stored.medium = fields_.medium;
  stored.lora_name = fields_.lora_name;
  stored.extra_keys.absent = !fields_.has_extra_keys;
  if (fields_.num_keys != 0) stored.extra_keys.per_block = fields_.extra_keys;
  stored.group_idx = fields_.group_idx;
  stored.kv_cache_spec_kind = fields_.spec_kind;
  stored.kv_cache_spec_sliding_window = fields_.sliding_window;
  stored.locality = fields_.locality;
  stored.ownership = fields_.ownership;
  stored.session_id = fields_.session_id;
  result_.batch.Add(stored);
  return true;
}

void EventDecoder::AppendRemoved() {
  BlockRemoved removed;
  removed.block_hashes = fields_.hashes;
  removed.medium = fields_.medium;
  removed.group_idx = fields_.group_idx;
  removed.locality = fields_.locality;
  removed.ownership = fields_.ownership;
  result_.batch.Add(removed);
}

bool EventDecoder::FailUnknown() {
  constexpr std::size_t kShown = 64;
  const std::string_view tag = fields_.tag.text();
  const bool printable =
      tag.size() <= kShown && std::all_of(tag.begin(), tag.end(), [](char c) { return c >= ' ' && c <= '~'; });
  context_.place().field = Name(Field::kType);
  return context_.Fail(DecodeErrorCode::kUnknownEvent, fields_.tag.offset,
                       printable ? fmt::format("'{}'", tag) : fmt::format("a tag of {} bytes", tag.size()));
}

bool EventDecoder::Append(std::size_t offset) {
  context_.place().element = context_.place().key = DecodePlace::kNowhere;
  if (fields_.kind == Kind::kUnknown) return FailUnknown();
  if (fields_.kind != Kind::kCleared && (fields_.seen & Bit(Field::kBlockHashes)) == 0) {
    context_.place().field = Name(Field::kBlockHashes);
    return context_.Fail(DecodeErrorCode::kMissingField, offset, "the event must have it");
  }
  switch (fields_.kind) {
    case Kind::kStored:
      if (!AppendStored(offset)) return false;
      break;
    case Kind::kRemoved:
      AppendRemoved();
      break;
    case Kind::kCleared:
    case Kind::kUnknown:
      result_.batch.Add(AllBlocksCleared{});
      break;
  }
  total_hashes_ += fields_.hashes.size();
  total_keys_ += fields_.num_keys;
  result_.ignored_fields += fields_.ignored;
  ++(fields_.from_map ? result_.map_events : result_.array_events);
  return true;
}

}  // namespace kvwire
