// SPDX-License-Identifier: Apache-2.0
#include "kv_events/wire/decoder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "kv_events/wire/decode_context.h"
#include "kv_events/wire/decode_event.h"

namespace kvwire {

namespace {

// The batch addresses its arrays with 32 bits; every hash and every token takes at least one byte of payload.
constexpr std::size_t kPayloadCeiling = std::size_t{1} << 31;

// Above this an integer time stamp cannot be seconds (year 5138), so it is milliseconds.
constexpr double kMillisecondsAbove = 1e11;

class BatchDecoder {
 public:
  BatchDecoder(std::span<const std::uint8_t> payload, const DecodeOptions& options)
      : options_(options), reader_(payload, options.limits.max_depth), context_(&reader_, options_.limits) {}

  tl::expected<DecodedBatch, DecodeError> Decode() {
    if (!Read()) return tl::unexpected<DecodeError>(context_.TakeError());
    return std::move(result_);
  }

 private:
  bool Read();
  bool ReadArray(const MsgpackItem& array);
  bool ReadMap(const MsgpackItem& map);
  bool ReadTime();
  bool ReadEvents();
  bool ReadRank(std::string_view name, std::optional<std::int64_t>* rank);
  void At(std::string_view field) {
    context_.place() = DecodePlace{};
    context_.place().field = field;
  }

  DecodeOptions options_;
  MsgpackReader reader_;
  DecodeContext context_;
  DecodedBatch result_;
  EventDecoder events_{options_, &context_, &result_};
};

bool BatchDecoder::Read() {
  const std::size_t allowed = std::min(options_.limits.max_payload_bytes, kPayloadCeiling);
  if (reader_.remaining() > allowed) {
    return context_.Fail(DecodeErrorCode::kLimitExceeded, 0,
                         fmt::format("payload of {} bytes, at most {} are read", reader_.remaining(), allowed));
  }
  MsgpackItem head;
  if (!context_.Next(&head)) return false;
  if (head.type != MsgpackType::kArray && head.type != MsgpackType::kMap) {
    return context_.Unexpected(head, "array or map");
  }
  if (!context_.Enter(head, kBatchDepth)) return false;
  if (!(head.type == MsgpackType::kArray ? ReadArray(head) : ReadMap(head))) return false;
  At({});
  if (reader_.remaining() == 0) return true;
  return context_.Fail(DecodeErrorCode::kTrailingBytes, reader_.offset(),
                       fmt::format("{} bytes follow the batch", reader_.remaining()));
}

bool BatchDecoder::ReadArray(const MsgpackItem& array) {
  result_.shape = BatchShape::kArray;
  if (array.number < 2) {
    return context_.Fail(DecodeErrorCode::kBadShape, array.offset,
                         fmt::format("{} elements, a batch has at least a time and events", array.number));
  }
  if (!ReadTime() || !ReadEvents()) return false;
  if (array.number > 2 && !ReadRank("data_parallel_rank", &result_.batch.data_parallel_rank)) return false;
  At({});
  for (std::uint64_t i = 3; i < array.number; ++i) {
    ++result_.ignored_fields;
    if (!context_.Skip(kEventsDepth)) return false;
  }
  return true;
}

bool BatchDecoder::ReadMap(const MsgpackItem& map) {
  static constexpr std::string_view kKeys[] = {"ts", "events", "data_parallel_rank", "attn_dp_rank"};
  result_.shape = BatchShape::kMap;
  std::optional<std::int64_t> rank;
  std::optional<std::int64_t> attention_rank;
  bool seen[4] = {};
  for (std::uint64_t i = 0; i < map.number; ++i) {
    At({});
    const std::size_t key_offset = reader_.offset();
    std::string_view key;
    if (!context_.Key(&key, kEventsDepth)) return false;
    const auto which = static_cast<std::size_t>(std::find(std::begin(kKeys), std::end(kKeys), key) - kKeys);
    if (which == std::size(kKeys)) {
      ++result_.ignored_fields;
      if (!context_.Skip(kEventsDepth)) return false;
      continue;
    }
    At(kKeys[which]);
    if (std::exchange(seen[which], true)) {
      return context_.Fail(DecodeErrorCode::kInconsistent, key_offset, "the key is there twice");
    }
    const bool ok = which == 0   ? ReadTime()
                    : which == 1 ? ReadEvents()
                                 : ReadRank(kKeys[which], which == 2 ? &rank : &attention_rank);
    if (!ok) return false;
  }
  for (const std::size_t needed : {std::size_t{0}, std::size_t{1}}) {
    if (seen[needed]) continue;
    At(kKeys[needed]);
    return context_.Fail(DecodeErrorCode::kMissingField, map.offset, "the batch must have it");
  }
  result_.batch.data_parallel_rank = rank ? rank : attention_rank;
  return true;
}

bool BatchDecoder::ReadTime() {
  At("ts");
  MsgpackItem item;
  if (!context_.Next(&item)) return false;
  double seconds = std::numeric_limits<double>::quiet_NaN();
  if (item.type == MsgpackType::kFloat) {
    seconds = item.real;
  } else if (item.type == MsgpackType::kUint) {
    seconds = static_cast<double>(item.number);
    if (seconds > kMillisecondsAbove) seconds /= 1000;
  } else if (item.type == MsgpackType::kNegative) {
    seconds = static_cast<double>(static_cast<std::int64_t>(item.number));
  } else if (item.type != MsgpackType::kNil) {
    return context_.Unexpected(item, "float, integer or nil");
  }
  result_.without_time = !std::isfinite(seconds);
  result_.batch.ts = result_.without_time ? 0 : seconds;
  return true;
}

bool BatchDecoder::ReadRank(std::string_view name, std::optional<std::int64_t>* rank) {
  At(name);
  return context_.OptionalInt64(rank);
}

bool BatchDecoder::ReadEvents() {
  At("events");
  MsgpackItem array;
  if (!context_.Next(&array)) return false;
  if (array.type != MsgpackType::kArray) return context_.Unexpected(array, "array");
  if (!context_.Enter(array, kEventsDepth)) return false;
  if (array.number > options_.limits.max_events) {
    return context_.Fail(DecodeErrorCode::kLimitExceeded, array.offset,
                         fmt::format("{} events, at most {} are read", array.number, options_.limits.max_events));
  }
  for (std::size_t i = 0; i < array.number; ++i) {
    if (events_.Decode(i)) continue;
    if (context_.broken() || options_.strict) return false;
    ++result_.rejected_total;
    if (result_.rejected.size() < options_.limits.max_rejected_details) {
      result_.rejected.push_back(RejectedEvent{i, context_.TakeError()});
    }
  }
  return true;
}

}  // namespace

tl::expected<DecodedBatch, DecodeError> DecodeBatch(std::span<const std::uint8_t> payload,
                                                    const DecodeOptions& options) {
  return BatchDecoder(payload, options).Decode();
}

}  // namespace kvwire
