// SPDX-License-Identifier: Apache-2.0
// A payload, as any publisher may send it.
#include <span>
#include <vector>

#include "kv_events/wire/decoder.h"
#include "kv_events/wire/encoder.h"
#include "tests/fuzz/fuzz_target.h"

namespace kvwire::fuzz {
namespace {

void CheckError(const DecodeError& error, std::size_t size) {
  KVWIRE_PROMISE(error.offset <= size);
  KVWIRE_PROMISE(!error.path.empty());
  KVWIRE_PROMISE(IsOneLine(error.message));
  KVWIRE_PROMISE(error.message.find(error.path) != std::string::npos);
}

// What was read can be written in every shape and read again.
void CheckAgain(const KVEventBatch& batch) {
  for (const EventFormat format : {EventFormat::kMap, EventFormat::kArray}) {
    KVEventsConfig::Extensions switches;
    switches.event_format = format;
    switches.hash_form = HashForm::kBytes;
    std::vector<std::uint8_t> payload;
    BatchEncoder(switches).Encode(batch, &payload);
    const auto again = DecodeBatch(payload);
    KVWIRE_PROMISE(again.has_value());
    KVWIRE_PROMISE(again->rejected_total == 0);
    KVWIRE_PROMISE(again->batch.size() == batch.size());
    if (format == EventFormat::kMap) KVWIRE_PROMISE(again->batch == batch);
  }
}

// True if a batch was read, with or without rejected events.
bool CheckDecoding(std::span<const std::uint8_t> payload, const DecodeOptions& options) {
  const auto decoded = DecodeBatch(payload, options);
  if (!decoded) {
    CheckError(decoded.error(), payload.size());
    return false;
  }
  KVWIRE_PROMISE(decoded->rejected.size() <= options.limits.max_rejected_details);
  KVWIRE_PROMISE(decoded->rejected.size() <= decoded->rejected_total);
  for (const RejectedEvent& rejected : decoded->rejected) CheckError(rejected.error, payload.size());
  KVWIRE_PROMISE(decoded->map_events + decoded->array_events == decoded->batch.size());
  KVWIRE_PROMISE(decoded->batch.size() + decoded->rejected_total <= options.limits.max_events);
  KVWIRE_PROMISE(!options.strict || decoded->rejected_total == 0);
  CheckAgain(decoded->batch);
  return true;
}

}  // namespace
}  // namespace kvwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvwire;
  const std::span<const std::uint8_t> payload(data, size);
  const bool lenient = fuzz::CheckDecoding(payload, {});
  DecodeOptions strict;
  strict.strict = true;
  if (fuzz::CheckDecoding(payload, strict)) KVWIRE_PROMISE(lenient);
  DecodeOptions narrow;
  narrow.hash_bits = HashBits::kFirst64;
  narrow.zero_parent_is_none = true;
  narrow.limits.max_events = 3;
  narrow.limits.max_hashes_per_event = 4;
  narrow.limits.max_hashes = 6;
  narrow.limits.max_tokens_per_event = 16;
  narrow.limits.max_extra_keys = 4;
  narrow.limits.max_text_bytes = 16;
  narrow.limits.max_rejected_details = 1;
  narrow.limits.max_depth = 6;
  fuzz::CheckDecoding(payload, narrow);
  return 0;
}
