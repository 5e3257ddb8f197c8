// SPDX-License-Identifier: Apache-2.0
#include "kv_events/wire/msgpack_reader.h"

#include <bit>

namespace kvwire {

std::string_view ToString(MsgpackType type) noexcept {
  switch (type) {
    case MsgpackType::kNil:
      return "nil";
    case MsgpackType::kBool:
      return "bool";
    case MsgpackType::kUint:
    case MsgpackType::kNegative:
      return "integer";
    case MsgpackType::kFloat:
      return "float";
    case MsgpackType::kStr:
      return "str";
    case MsgpackType::kBin:
      return "bin";
    case MsgpackType::kArray:
      return "array";
    case MsgpackType::kMap:
      return "map";
    case MsgpackType::kExt:
      return "ext";
  }
  return "?";
}

ReadFault MsgpackReader::BigEndian(unsigned bytes, std::uint64_t* value) {
  if (remaining() < bytes) return ReadFault::kTruncated;
  *value = 0;
  for (unsigned i = 0; i < bytes; ++i) *value = *value << 8 | *at_++;
  return ReadFault::kNone;
}

ReadFault MsgpackReader::Signed(unsigned bytes, MsgpackItem* item) {
  std::uint64_t value = 0;
  if (const ReadFault fault = BigEndian(bytes, &value); fault != ReadFault::kNone) return fault;
  const std::uint64_t sign = std::uint64_t{1} << (8 * bytes - 1);
  item->type = (value & sign) != 0 ? MsgpackType::kNegative : MsgpackType::kUint;
  item->number = (value ^ sign) - sign;
  return ReadFault::kNone;
}

ReadFault MsgpackReader::Float(unsigned bytes, MsgpackItem* item) {
  item->type = MsgpackType::kFloat;
  std::uint64_t bits = 0;
  if (const ReadFault fault = BigEndian(bytes, &bits); fault != ReadFault::kNone) return fault;
  item->real = bytes == 8 ? std::bit_cast<double>(bits) : std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  return ReadFault::kNone;
}

ReadFault MsgpackReader::Bytes(MsgpackType type, std::uint64_t size, MsgpackItem* item) {
  item->type = type;
  item->number = size;
  if (size > remaining()) return ReadFault::kTooLong;
  item->bytes = {at_, static_cast<std::size_t>(size)};
  at_ += size;
  return ReadFault::kNone;
}

ReadFault MsgpackReader::SizedBytes(MsgpackType type, unsigned size_bytes, MsgpackItem* item) {
  std::uint64_t size = 0;
  if (const ReadFault fault = BigEndian(size_bytes, &size); fault != ReadFault::kNone) return fault;
  // An ext has one more byte, its own type, in front of its content.
  return Bytes(type, type == MsgpackType::kExt ? size + 1 : size, item);
}

ReadFault MsgpackReader::Container(MsgpackType type, std::uint64_t count, MsgpackItem* item) {
  item->type = type;
  item->number = count;
  // Every element takes at least one byte, every pair two.
  if ((type == MsgpackType::kMap ? 2 * count : count) > remaining()) return ReadFault::kTooLong;
  return ReadFault::kNone;
}

ReadFault MsgpackReader::SizedContainer(MsgpackType type, unsigned count_bytes, MsgpackItem* item) {
  std::uint64_t count = 0;
  if (const ReadFault fault = BigEndian(count_bytes, &count); fault != ReadFault::kNone) return fault;
  return Container(type, count, item);
}

ReadFault MsgpackReader::Next(MsgpackItem* item) {
  item->offset = offset();
  const ReadFault fault = Value(item);
  if (fault != ReadFault::kNone) culprit_ = *item;
  return fault;
}

ReadFault MsgpackReader::Value(MsgpackItem* item) {
  if (at_ == end_) return ReadFault::kTruncated;
  const std::uint8_t head = *at_++;
  if (head < 0x80) {
    item->type = MsgpackType::kUint;
    item->number = head;
    return ReadFault::kNone;
  }
  if (head < 0x90) return Container(MsgpackType::kMap, head & 0x0f, item);
  if (head < 0xa0) return Container(MsgpackType::kArray, head & 0x0f, item);
  if (head < 0xc0) return Bytes(MsgpackType::kStr, head & 0x1f, item);
  if (head >= 0xe0) {
    item->type = MsgpackType::kNegative;
    item->number = std::uint64_t{head} - 0x100;
    return ReadFault::kNone;
  }
  return Headed(head, item);
}

ReadFault MsgpackReader::Headed(std::uint8_t head, MsgpackItem* item) {
  switch (head) {
    case 0xc0:
      item->type = MsgpackType::kNil;
      return ReadFault::kNone;
    case 0xc2:
    case 0xc3:
      item->type = MsgpackType::kBool;
      item->number = head & 1u;
      return ReadFault::kNone;
    case 0xc4:
    case 0xc5:
    case 0xc6:
      return SizedBytes(MsgpackType::kBin, 1u << (head - 0xc4), item);
    case 0xc7:
    case 0xc8:
    case 0xc9:
      return SizedBytes(MsgpackType::kExt, 1u << (head - 0xc7), item);
    case 0xca:
      return Float(4, item);
    case 0xcb:
      return Float(8, item);
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
      item->type = MsgpackType::kUint;
      return BigEndian(1u << (head - 0xcc), &item->number);
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
      return Signed(1u << (head - 0xd0), item);
    case 0xd4:
    case 0xd5:
    case 0xd6:
    case 0xd7:
    case 0xd8:
      return Bytes(MsgpackType::kExt, 1 + (std::uint64_t{1} << (head - 0xd4)), item);
    case 0xd9:
    case 0xda:
    case 0xdb:
      return SizedBytes(MsgpackType::kStr, 1u << (head - 0xd9), item);
    case 0xdc:
    case 0xdd:
      return SizedContainer(MsgpackType::kArray, 2u << (head - 0xdc), item);
    case 0xde:
    case 0xdf:
      return SizedContainer(MsgpackType::kMap, 2u << (head - 0xde), item);
    default:  // over bytes, not an enum: what is left is 0xc1
      return ReadFault::kNoType;
  }
}

ReadFault MsgpackReader::Skip(std::uint32_t depth) {
  MsgpackItem item;
  if (const ReadFault fault = Next(&item); fault != ReadFault::kNone) return fault;
  if (item.type != MsgpackType::kArray && item.type != MsgpackType::kMap) return ReadFault::kNone;
  if (depth > max_depth_) {
    culprit_ = item;
    return ReadFault::kTooDeep;
  }
  const std::uint64_t values = item.type == MsgpackType::kMap ? 2 * item.number : item.number;
  for (std::uint64_t i = 0; i < values; ++i) {
    if (const ReadFault fault = Skip(depth + 1); fault != ReadFault::kNone) return fault;
  }
  return ReadFault::kNone;
}

}  // namespace kvwire
