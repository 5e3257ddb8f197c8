// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kv_events/wire/decoder.h"
#include "kv_events/wire/msgpack_reader.h"

namespace kvwire {

// What is being read: events[event].field[element][key], as far as set.
struct DecodePlace {
  static constexpr std::size_t kNowhere = ~std::size_t{0};

  std::size_t event = kNowhere;
  std::string_view field;
  std::size_t element = kNowhere;
  std::size_t key = kNowhere;

  std::string Path() const;
};

// A reader, the place in the batch, and the first failure. The readers of values return false once they failed.
class DecodeContext {
 public:
  DecodeContext(MsgpackReader* reader, const DecodeLimits& limits) : reader_(reader), limits_(limits) {}

  MsgpackReader& reader() { return *reader_; }
  const DecodeLimits& limits() const { return limits_; }
  DecodePlace& place() { return place_; }

  // Reads from another reader, the content of a bin, until given back; returns the one before.
  MsgpackReader* Exchange(MsgpackReader* reader);

  bool Next(MsgpackItem* item);
  bool Skip(std::uint32_t depth);

  // Failures at the value that begins at `offset`; always false.
  bool Fail(DecodeErrorCode code, std::size_t offset, std::string detail);
  bool Unexpected(const MsgpackItem& item, std::string_view expected);

  // Whether a container of the given depth is within the limit; fails if not.
  bool Enter(const MsgpackItem& container, std::uint32_t depth);

  // An integer or nil (nothing); a text or nil; with `what` for messages.
  bool OptionalInt64(std::optional<std::int64_t>* value);
  bool OptionalUint32(std::optional<std::uint32_t>* value);
  bool OptionalText(std::optional<std::string_view>* text);
  // The text of a str item: its length and its UTF-8 are checked.
  bool Text(const MsgpackItem& item, std::string_view* text);

  // A map key: its text, or an empty text for a key that is not a text.
  bool Key(std::string_view* key, std::uint32_t value_depth);

  // The failure, with its path, as it was when it happened.
  DecodeError TakeError();
  // Whether it left the reader without a known end of the value.
  bool broken() const { return broken_; }
  // What was broken was inside a bin, whose end is known.
  void Mend() { broken_ = false; }

 private:
  bool Fault(ReadFault fault);

  MsgpackReader* reader_;
  const DecodeLimits& limits_;
  DecodePlace place_;
  DecodeErrorCode code_ = DecodeErrorCode::kTruncated;
  std::size_t offset_ = 0;
  std::string detail_;
  bool broken_ = false;
};

// Whether the bytes are UTF-8 as RFC 3629 has it.
bool IsUtf8(std::span<const std::uint8_t> bytes) noexcept;

}  // namespace kvwire
