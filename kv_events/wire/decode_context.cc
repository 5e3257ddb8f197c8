// SPDX-License-Identifier: Apache-2.0
#include "kv_events/wire/decode_context.h"

#include <limits>
#include <utility>

#include <fmt/format.h>

namespace kvwire {

std::string_view ToString(DecodeErrorCode code) noexcept {
  switch (code) {
    case DecodeErrorCode::kTruncated:
      return "truncated";
    case DecodeErrorCode::kTrailingBytes:
      return "trailing bytes";
    case DecodeErrorCode::kLimitExceeded:
      return "limit exceeded";
    case DecodeErrorCode::kTooDeep:
      return "too deep";
    case DecodeErrorCode::kBadType:
      return "bad type";
    case DecodeErrorCode::kOutOfRange:
      return "out of range";
    case DecodeErrorCode::kMissingField:
      return "missing field";
    case DecodeErrorCode::kUnknownEvent:
      return "unknown event";
    case DecodeErrorCode::kBadShape:
      return "bad shape";
    case DecodeErrorCode::kInconsistent:
      return "inconsistent";
  }
  return "?";
}

bool IsUtf8(std::span<const std::uint8_t> bytes) noexcept {
  std::size_t i = 0;
  while (i < bytes.size()) {
    const std::uint8_t lead = bytes[i++];
    if (lead < 0x80) continue;
    // Overlong forms, surrogates and what lies above U+10FFFF show in the first two bytes.
    std::uint8_t low = 0x80;
    std::uint8_t high = 0xbf;
    std::size_t more = 1;
    if (lead >= 0xc2 && lead <= 0xdf) {
      more = 1;
    } else if (lead >= 0xe0 && lead <= 0xef) {
      more = 2;
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
      more = 3;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    } else {
      return false;
    }
    for (; more > 0; --more, low = 0x80, high = 0xbf) {
      if (i == bytes.size() || bytes[i] < low || bytes[i] > high) return false;
      ++i;
    }
  }
  return true;
}

std::string DecodePlace::Path() const {
  std::string path;
  if (event != kNowhere) path = fmt::format("events[{}]", event);
  if (!field.empty()) {
    if (!path.empty()) path += '.';
    path += field;
  }
  if (element != kNowhere) path += fmt::format("[{}]", element);
  if (key != kNowhere) path += fmt::format("[{}]", key);
  return path.empty() ? "batch" : path;
}

MsgpackReader* DecodeContext::Exchange(MsgpackReader* reader) { return std::exchange(reader_, reader); }

bool DecodeContext::Fail(DecodeErrorCode code, std::size_t offset, std::string detail) {
  code_ = code;
  offset_ = offset;
  detail_ = std::move(detail);
  return false;
}

bool DecodeContext::Fault(ReadFault fault) {
  const MsgpackItem& culprit = reader_->culprit();
  broken_ = true;
  switch (fault) {
    case ReadFault::kNone:
      break;
    case ReadFault::kTruncated:
      return Fail(DecodeErrorCode::kTruncated, culprit.offset, "the bytes end inside a value");
    case ReadFault::kTooLong:
      return Fail(DecodeErrorCode::kLimitExceeded, culprit.offset,
                  fmt::format("{} of length {} cannot fit into the {} bytes that remain", ToString(culprit.type),
                              culprit.number, reader_->remaining()));
    case ReadFault::kNoType:
      return Fail(DecodeErrorCode::kBadType, culprit.offset, "0xc1 begins no value");
    case ReadFault::kTooDeep:
      return Fail(DecodeErrorCode::kTooDeep, culprit.offset,
                  fmt::format("arrays and maps nested above {}", reader_->max_depth()));
  }
  return false;
}

bool DecodeContext::Next(MsgpackItem* item) {
  const ReadFault fault = reader_->Next(item);
  return fault == ReadFault::kNone || Fault(fault);
}

bool DecodeContext::Skip(std::uint32_t depth) {
  const ReadFault fault = reader_->Skip(depth);
  return fault == ReadFault::kNone || Fault(fault);
}

bool DecodeContext::Unexpected(const MsgpackItem& item, std::string_view expected) {
  return Fail(DecodeErrorCode::kBadType, item.offset,
              fmt::format("expected {}, found {}", expected, ToString(item.type)));
}

bool DecodeContext::Enter(const MsgpackItem& container, std::uint32_t depth) {
  if (depth <= reader_->max_depth()) return true;
  broken_ = true;
  return Fail(DecodeErrorCode::kTooDeep, container.offset,
              fmt::format("arrays and maps nested above {}", reader_->max_depth()));
}

bool DecodeContext::OptionalInt64(std::optional<std::int64_t>* value) {
  MsgpackItem item;
  if (!Next(&item)) return false;
  value->reset();
  if (item.type == MsgpackType::kNil) return true;
  if (item.type != MsgpackType::kUint && item.type != MsgpackType::kNegative) return Unexpected(item, "integer or nil");
  if (item.type == MsgpackType::kUint && item.number > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
    return Fail(DecodeErrorCode::kOutOfRange, item.offset, fmt::format("{} is above 2^63-1", item.number));
  }
  *value = static_cast<std::int64_t>(item.number);
  return true;
}

bool DecodeContext::OptionalUint32(std::optional<std::uint32_t>* value) {
  MsgpackItem item;
  if (!Next(&item)) return false;
  value->reset();
  if (item.type == MsgpackType::kNil) return true;
  if (item.type != MsgpackType::kUint && item.type != MsgpackType::kNegative) return Unexpected(item, "integer or nil");
  if (item.type == MsgpackType::kNegative) {
    return Fail(DecodeErrorCode::kOutOfRange, item.offset,
                fmt::format("{} is below 0", static_cast<std::int64_t>(item.number)));
  }
  if (item.number > std::numeric_limits<std::uint32_t>::max()) {
    return Fail(DecodeErrorCode::kOutOfRange, item.offset, fmt::format("{} is above 2^32-1", item.number));
  }
  *value = static_cast<std::uint32_t>(item.number);
  return true;
}

bool DecodeContext::Text(const MsgpackItem& item, std::string_view* text) {
  if (item.bytes.size() > limits_.max_text_bytes) {
    return Fail(DecodeErrorCode::kLimitExceeded, item.offset,
                fmt::format("text of {} bytes, at most {} are read", item.bytes.size(), limits_.max_text_bytes));
  }
  if (!IsUtf8(item.bytes)) return Fail(DecodeErrorCode::kBadType, item.offset, "the text is not UTF-8");
  *text = item.text();
  return true;
}

bool DecodeContext::OptionalText(std::optional<std::string_view>* text) {
  MsgpackItem item;
  if (!Next(&item)) return false;
  text->reset();
  if (item.type == MsgpackType::kNil) return true;
  if (item.type != MsgpackType::kStr) return Unexpected(item, "str or nil");
  std::string_view value;
  if (!Text(item, &value)) return false;
  *text = value;
  return true;
}

bool DecodeContext::Key(std::string_view* key, std::uint32_t value_depth) {
  const std::size_t start = reader_->offset();
  MsgpackItem item;
  if (!Next(&item)) return false;
  *key = {};
  if (item.type == MsgpackType::kStr) {
    *key = item.text();
  } else if (item.type == MsgpackType::kArray || item.type == MsgpackType::kMap) {
    reader_->Rewind(start);
    return Skip(value_depth);
  }
  return true;
}

DecodeError DecodeContext::TakeError() {
  DecodeError error;
  error.code = code_;
  error.offset = offset_;
  error.path = place_.Path();
  error.message = fmt::format("{} at byte {}, {}: {}", ToString(code_), offset_, error.path, detail_);
  broken_ = false;
  return error;
}

}  // namespace kvwire
