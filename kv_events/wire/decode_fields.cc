// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "kv_events/wire/decode_event.h"

namespace kvwire {

namespace {

constexpr std::uint32_t kBlockKeysDepth = kFieldDepth + 1;
constexpr std::uint32_t kKeyDepth = kFieldDepth + 2;

bool IsInteger(const MsgpackItem& item) {
  return item.type == MsgpackType::kUint || item.type == MsgpackType::kNegative;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

bool EventDecoder::ReadField(Field field) {
  fields_.seen |= 1u << static_cast<unsigned>(field);
  switch (field) {
    case Field::kType: {
      MsgpackItem tag;  // looked at before
      return context_.Next(&tag);
    }
    case Field::kBlockHashes:
      return ReadHashes();
    case Field::kParent:
      return ReadParent();
    case Field::kTokenIds:
      return ReadTokens();
    case Field::kBlockSize:
      return context_.OptionalUint32(&fields_.block_size);
    case Field::kLoraId:
      return context_.OptionalInt64(&fields_.lora_id);
    case Field::kMedium:
      return context_.OptionalText(&fields_.medium);
    case Field::kLoraName:
      return context_.OptionalText(&fields_.lora_name);
    case Field::kExtraKeys:
      return ReadExtraKeys();
    case Field::kGroupIdx:
      return context_.OptionalUint32(&fields_.group_idx);
    case Field::kSpecKind:
      return context_.OptionalText(&fields_.spec_kind);
    case Field::kSlidingWindow:
      return context_.OptionalUint32(&fields_.sliding_window);
    case Field::kLocality:
      return context_.OptionalText(&fields_.locality);
    case Field::kOwnership:
      return context_.OptionalText(&fields_.ownership);
    case Field::kSessionId:
      return context_.OptionalText(&fields_.session_id);
    case Field::kCacheSalt:
      return context_.OptionalText(&fields_.cache_salt);
    case Field::kMmKeys:
      return ReadMmKeys();
    case Field::kUnknown:
      break;
  }
  return Ignore();
}

bool EventDecoder::ReadHashes() {
  MsgpackItem array;
  if (!context_.Next(&array)) return false;
  if (array.type != MsgpackType::kArray) return context_.Unexpected(array, "array");
  if (!context_.Enter(array, kFieldDepth)) return false;
  const DecodeLimits& limits = context_.limits();
  const std::size_t allowed = std::min(limits.max_hashes_per_event, limits.max_hashes - total_hashes_);
  if (array.number > allowed) {
    return context_.Fail(DecodeErrorCode::kLimitExceeded, array.offset,
                         fmt::format("{} block hashes, at most {} more are read", array.number, allowed));
  }
  fields_.hashes.reserve(static_cast<std::size_t>(array.number));
  for (std::size_t i = 0; i < array.number; ++i) {
    context_.place().element = i;
    MsgpackItem item;
    BlockHash hash;
    if (!context_.Next(&item) || !ReadHash(item, &hash)) return false;
    fields_.hashes.push_back(hash);
  }
  context_.place().element = DecodePlace::kNowhere;
  return true;
}

bool EventDecoder::ReadHash(const MsgpackItem& item, BlockHash* hash) {
  if (IsInteger(item)) {
    *hash = BlockHash::FromUint64(item.number);
    return true;
  }
  if (item.type == MsgpackType::kStr) return ReadHexHash(item, hash);
  if (item.type != MsgpackType::kBin) return context_.Unexpected(item, "integer, bin or str of hex digits");
  if (item.bytes.empty()) return context_.Fail(DecodeErrorCode::kOutOfRange, item.offset, "a hash of 0 bytes");
  std::span<const std::uint8_t> bytes = item.bytes;
  if (options_.hash_bits == HashBits::kFirst64) {
    bytes = bytes.first(std::min<std::size_t>(bytes.size(), 8));
  } else {
    bytes = bytes.last(std::min(bytes.size(), BlockHash::kMaxSize));
  }
  *hash = *BlockHash::FromBytes(bytes);
  return true;
}

bool EventDecoder::ReadHexHash(const MsgpackItem& item, BlockHash* hash) {
  const std::string_view digits = item.text();
  if (digits.empty() || digits.size() % 2 != 0 || digits.size() > 2 * BlockHash::kMaxSize) {
    return context_.Fail(DecodeErrorCode::kOutOfRange, item.offset,
                         fmt::format("a hash of {} hex digits, an even number from 2 to {} is read", digits.size(),
                                     2 * BlockHash::kMaxSize));
  }
  std::array<std::uint8_t, BlockHash::kMaxSize> bytes{};
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    const int high = HexDigit(digits[i]);
    const int low = HexDigit(digits[i + 1]);
    if (high < 0 || low < 0) {
      return context_.Fail(DecodeErrorCode::kBadType, item.offset, "a text that is not hex digits");
    }
    bytes[i / 2] = static_cast<std::uint8_t>(high << 4 | low);
  }
  MsgpackItem bin = item;
  bin.type = MsgpackType::kBin;
  bin.bytes = {bytes.data(), digits.size() / 2};
  return ReadHash(bin, hash);
}

bool EventDecoder::ReadParent() {
  MsgpackItem item;
  if (!context_.Next(&item)) return false;
  if (item.type == MsgpackType::kNil) return true;
  if (options_.zero_parent_is_none && item.type == MsgpackType::kUint && item.number == 0) return true;
  BlockHash parent;
  if (!ReadHash(item, &parent)) return false;
  fields_.parent = parent;
  return true;
}

bool EventDecoder::ReadTokens() {
  MsgpackItem array;
  if (!context_.Next(&array)) return false;
  if (array.type == MsgpackType::kNil) return true;
  if (array.type != MsgpackType::kArray) return context_.Unexpected(array, "array or nil");
  if (!context_.Enter(array, kFieldDepth)) return false;
  if (array.number > context_.limits().max_tokens_per_event) {
    return context_.Fail(
        DecodeErrorCode::kLimitExceeded, array.offset,
        fmt::format("{} tokens, at most {} are read", array.number, context_.limits().max_tokens_per_event));
  }
  fields_.tokens.reserve(static_cast<std::size_t>(array.number));
  for (std::size_t i = 0; i < array.number; ++i) {
    TokenId token = 0;
    if (!context_.reader().TryUint32(kMaxTokenId, &token)) {
      context_.place().element = i;
      MsgpackItem item;
      if (!context_.Next(&item)) return false;
      if (i == 0 && item.type == MsgpackType::kArray) return ReadPairs(array.number, item);
      if (!ReadToken(item, &token)) return false;
    }
    fields_.tokens.push_back(token);
  }
  context_.place().element = DecodePlace::kNowhere;
  return true;
}

bool EventDecoder::ReadToken(const MsgpackItem& item, TokenId* token) {
  if (!IsInteger(item)) return context_.Unexpected(item, "integer");
  if (item.type == MsgpackType::kNegative) {
    return context_.Fail(DecodeErrorCode::kOutOfRange, item.offset,
                         fmt::format("token {} is below 0", static_cast<std::int64_t>(item.number)));
  }
  if (item.number > kMaxTokenId) {
    return context_.Fail(DecodeErrorCode::kOutOfRange, item.offset,
                         fmt::format("token {} is above 2^31-1", item.number));
  }
  *token = static_cast<TokenId>(item.number);
  return true;
}

// Bigrams (a,b), (b,c), ... stand for a, b, c, ...: one token more than pairs.
bool EventDecoder::ReadPairs(std::uint64_t count, const MsgpackItem& first) {
  MsgpackItem pair = first;
  fields_.tokens.reserve(static_cast<std::size_t>(count) + 1);
  for (std::size_t i = 0; i < count; ++i) {
    context_.place().element = i;
    context_.place().key = DecodePlace::kNowhere;
    if (i > 0 && !context_.Next(&pair)) return false;
    if (pair.type != MsgpackType::kArray) return context_.Unexpected(pair, "array of two, as before");
    if (!context_.Enter(pair, kFieldDepth + 1)) return false;
    if (pair.number != 2) {
      return context_.Fail(DecodeErrorCode::kBadShape, pair.offset, fmt::format("{} tokens for a pair", pair.number));
    }
    std::array<TokenId, 2> tokens{};
    for (std::size_t k = 0; k < 2; ++k) {
      context_.place().key = k;
      MsgpackItem item;
      if (!context_.Next(&item) || !ReadToken(item, &tokens[k])) return false;
    }
    if (i == 0) {
      fields_.tokens.push_back(tokens[0]);
    } else if (tokens[0] != fields_.tokens.back()) {
      context_.place().key = 0;
      return context_.Fail(
          DecodeErrorCode::kInconsistent, pair.offset,
          fmt::format("the pair begins with {}, the one before ends with {}", tokens[0], fields_.tokens.back()));
    }
    fields_.tokens.push_back(tokens[1]);
  }
  context_.place().element = context_.place().key = DecodePlace::kNowhere;
  return true;
}

bool EventDecoder::ReadExtraKeys() {
  MsgpackItem array;
  if (!context_.Next(&array)) return false;
  if (array.type == MsgpackType::kNil) return true;
  if (array.type != MsgpackType::kArray) return context_.Unexpected(array, "array or nil");
  if (!context_.Enter(array, kFieldDepth)) return false;
  if (array.number > context_.limits().max_hashes_per_event) {
    return context_.Fail(DecodeErrorCode::kLimitExceeded, array.offset,
                         fmt::format("extra keys of {} blocks, at most {} are read", array.number,
                                     context_.limits().max_hashes_per_event));
  }
  fields_.has_extra_keys = true;
  fields_.extra_keys.resize(static_cast<std::size_t>(array.number));
  for (std::size_t i = 0; i < array.number; ++i) {
    context_.place().element = i;
    context_.place().key = DecodePlace::kNowhere;
    if (!ReadKeysOfBlock(&fields_.extra_keys[i])) return false;
  }
  context_.place().element = context_.place().key = DecodePlace::kNowhere;
  return true;
}

bool EventDecoder::ReadKeysOfBlock(ExtraKeys* keys) {
  MsgpackItem array;
  if (!context_.Next(&array)) return false;
  if (array.type == MsgpackType::kNil) return true;
  if (array.type != MsgpackType::kArray) return context_.Unexpected(array, "array or nil");
  if (!context_.Enter(array, kBlockKeysDepth)) return false;
  const std::size_t allowed =
      context_.limits().max_extra_keys - std::min(total_keys_ + fields_.num_keys, context_.limits().max_extra_keys);
  if (array.number > allowed) {
    return context_.Fail(DecodeErrorCode::kLimitExceeded, array.offset,
                         fmt::format("{} extra keys, at most {} more are read", array.number, allowed));
  }
  fields_.num_keys += static_cast<std::size_t>(array.number);
  keys->resize(static_cast<std::size_t>(array.number));
  for (std::size_t i = 0; i < array.number; ++i) {
    context_.place().key = i;
    if (!ReadKey(&(*keys)[i])) return false;
  }
  return true;
}

bool EventDecoder::CheckBytes(std::size_t size, std::size_t offset) {
  if (size <= context_.limits().max_text_bytes) return true;
  return context_.Fail(DecodeErrorCode::kLimitExceeded, offset,
                       fmt::format("a key of {} bytes, at most {} are read", size, context_.limits().max_text_bytes));
}

bool EventDecoder::ReadKey(ExtraKey* key) {
  const std::size_t start = context_.reader().offset();
  MsgpackItem item;
  if (!context_.Next(&item)) return false;
  if (item.type == MsgpackType::kStr) {
    std::string_view text;
    if (!context_.Text(item, &text)) return false;
    *key = std::string(text);
    return true;
  }
  if (item.type == MsgpackType::kBin) {
    if (!CheckBytes(item.bytes.size(), item.offset)) return false;
    *key = std::vector<std::uint8_t>(item.bytes.begin(), item.bytes.end());
    return true;
  }
  if (item.type == MsgpackType::kArray && item.number == 2) {
    bool is_one = false;
    if (!context_.Enter(item, kKeyDepth) || !ReadMultimodalKey(key, &is_one)) return false;
    if (is_one) return true;
  }
  context_.reader().Rewind(start);
  return ReadOpaqueKey(start, key);
}

// Two values: an identifier and an offset make a multimodal key, anything else something unknown.
bool EventDecoder::ReadMultimodalKey(ExtraKey* key, bool* is_one) {
  MsgpackItem identifier;
  if (!context_.Next(&identifier)) return false;
  if (identifier.type != MsgpackType::kStr) return true;
  MsgpackItem offset;
  if (!context_.Next(&offset)) return false;
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  if (!IsInteger(offset) || (offset.type == MsgpackType::kUint && offset.number > kMax)) return true;
  std::string_view text;
  if (!context_.Text(identifier, &text)) return false;
  *is_one = true;
  *key = MultimodalKey{std::string(text), static_cast<std::int64_t>(offset.number)};
  return true;
}

bool EventDecoder::ReadOpaqueKey(std::size_t start, ExtraKey* key) {
  if (!context_.Skip(kKeyDepth)) return false;
  const std::span<const std::uint8_t> bytes = context_.reader().Since(start);
  if (!CheckBytes(bytes.size(), start)) return false;
  *key = OpaqueKey{std::string(bytes.begin(), bytes.end())};
  return true;
}

// Kept as it is, unless it says nothing.
bool EventDecoder::ReadMmKeys() {
  const std::size_t start = context_.reader().offset();
  MsgpackItem item;
  if (!context_.Next(&item)) return false;
  if (item.type == MsgpackType::kNil) return true;
  const bool empty = (item.type == MsgpackType::kArray || item.type == MsgpackType::kMap) && item.number == 0;
  context_.reader().Rewind(start);
  if (!context_.Skip(kFieldDepth)) return false;
  if (empty) return true;
  fields_.mm_keys = context_.reader().Since(start);
  return CheckBytes(fields_.mm_keys.size(), start);
}

// The seventh position of an array event: the LoRA name, or a map of further fields in which only the salt is known.
bool EventDecoder::ReadNameOrMetadata() {
  const std::size_t start = context_.reader().offset();
  MsgpackItem item;
  if (!context_.Next(&item)) return false;
  if (item.type != MsgpackType::kMap) {
    context_.reader().Rewind(start);
    return ReadField(Field::kLoraName);
  }
  if (!context_.Enter(item, kFieldDepth)) return false;
  for (std::uint64_t i = 0; i < item.number; ++i) {
    std::string_view key;
    if (!context_.Key(&key, kFieldDepth + 1)) return false;
    context_.place().element = DecodePlace::kNowhere;
    if (key == Name(Field::kCacheSalt)) {
      if (!context_.OptionalText(&fields_.cache_salt)) return false;
      continue;
    }
    ++fields_.ignored;
    if (!context_.Skip(kFieldDepth + 1)) return false;
  }
  return true;
}

}  // namespace kvwire
