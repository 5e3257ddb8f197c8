// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvwire {

// What a msgpack value is, without the width it came in. kUint holds every non-negative integer.
enum class MsgpackType : std::uint8_t { kNil, kBool, kUint, kNegative, kFloat, kStr, kBin, kArray, kMap, kExt };

std::string_view ToString(MsgpackType type) noexcept;

// One value, or the head of an array or a map.
struct MsgpackItem {
  MsgpackType type = MsgpackType::kNil;
  std::uint64_t number = 0;  // kUint: value; kNegative: two's complement; kArray, kMap: element or pair count
  double real = 0;           // kFloat
  std::span<const std::uint8_t> bytes;  // kStr, kBin, kExt
  std::size_t offset = 0;               // of the head, in the payload

  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

// Why no further value can be read: the structure of the bytes is broken.
enum class ReadFault : std::uint8_t {
  kNone,
  kTruncated,  // the bytes end inside a value
  kTooLong,    // a declared length is above the bytes that remain
  kNoType,     // 0xc1, which is no msgpack type
  kTooDeep,    // containers nested above the limit
};

// A cursor over untrusted msgpack. It never reads outside its bytes and never allocates; what it gives out are views.
class MsgpackReader {
 public:
  // Skip() recurses, so the limit has a limit.
  static constexpr std::uint32_t kDepthCeiling = 256;

  // `origin` is the offset of bytes[0] in the payload, for offsets in errors.
  MsgpackReader(std::span<const std::uint8_t> bytes, std::uint32_t max_depth, std::size_t origin = 0)
      : begin_(bytes.data()),
        at_(bytes.data()),
        end_(bytes.data() + bytes.size()),
        origin_(origin),
        max_depth_(max_depth < kDepthCeiling ? max_depth : kDepthCeiling) {}

  std::size_t offset() const { return origin_ + static_cast<std::size_t>(at_ - begin_); }
  std::size_t remaining() const { return static_cast<std::size_t>(end_ - at_); }
  std::uint32_t max_depth() const { return max_depth_; }

  // Goes back to an offset() seen before.
  void Rewind(std::size_t offset) { at_ = begin_ + (offset - origin_); }

  // The bytes from an offset() seen before up to here.
  std::span<const std::uint8_t> Since(std::size_t offset) const { return {begin_ + (offset - origin_), at_}; }

  // Reads a scalar, a text, bytes, or only the head of a container. A count that cannot fit into the remaining bytes
  // is refused.
  ReadFault Next(MsgpackItem* item);

  // Steps over a whole value; `depth` is how many containers a container found here would make, itself included.
  ReadFault Skip(std::uint32_t depth);

  // After a fault, where the position is unspecified: the value that caused it, as far as it could be read.
  const MsgpackItem& culprit() const { return culprit_; }

  // Fast path: true, and the position moves, if the next value is an unsigned integer up to `max`.
  bool TryUint32(std::uint32_t max, std::uint32_t* value) {
    if (at_ == end_) return false;
    const std::uint8_t head = *at_;
    const std::size_t left = remaining();
    std::size_t size = 1;
    if (head < 0x80) {
      *value = head;
    } else if (head == 0xcd && left >= 3) {
      *value = static_cast<std::uint32_t>(at_[1] << 8 | at_[2]);
      size = 3;
    } else if (head == 0xce && left >= 5) {
      *value = std::uint32_t{at_[1]} << 24 | std::uint32_t{at_[2]} << 16 | std::uint32_t{at_[3]} << 8 | at_[4];
      size = 5;
    } else if (head == 0xcc && left >= 2) {
      *value = at_[1];
      size = 2;
    } else {
      return false;
    }
    if (*value > max) return false;
    at_ += size;
    return true;
  }

 private:
  ReadFault Value(MsgpackItem* item);
  ReadFault BigEndian(unsigned bytes, std::uint64_t* value);
  ReadFault Signed(unsigned bytes, MsgpackItem* item);
  ReadFault Float(unsigned bytes, MsgpackItem* item);
  ReadFault Bytes(MsgpackType type, std::uint64_t size, MsgpackItem* item);
  ReadFault SizedBytes(MsgpackType type, unsigned size_bytes, MsgpackItem* item);
  ReadFault Container(MsgpackType type, std::uint64_t count, MsgpackItem* item);
  ReadFault SizedContainer(MsgpackType type, unsigned count_bytes, MsgpackItem* item);
  ReadFault Headed(std::uint8_t head, MsgpackItem* item);

  const std::uint8_t* begin_;
  const std::uint8_t* at_;
  const std::uint8_t* end_;
  std::size_t origin_;
  std::uint32_t max_depth_;
  MsgpackItem culprit_;
};

}  // namespace kvwire
