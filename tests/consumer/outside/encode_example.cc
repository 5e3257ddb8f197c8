// SPDX-License-Identifier: Apache-2.0
// Events without a socket: record a step, take the batch, encode it for a transport of your own.

#include <cstdint>
#include <cstdio>
#include <vector>

#include "kv_events/config.h"
#include "kv_events/event_publisher.h"
#include "kv_events/event_recorder.h"
#include "kv_events/wire/encoder.h"

int main() {
  kvwire::CollectingEventPublisher publisher;
  kvwire::EventRecorder recorder(kvwire::EventRecorder::Options{}, &publisher);

  const std::vector<kvwire::BlockHash> hashes = {kvwire::BlockHash::FromUint64(0x1122334455667788)};
  const std::vector<kvwire::TokenId> tokens = {1, 2, 3, 4};
  kvwire::BlockStored stored;
  stored.block_hashes = hashes;
  stored.token_ids = tokens;
  stored.block_size = 4;
  recorder.Store(stored);
  recorder.EndStep();
  if (publisher.batches().size() != 1) return 1;

  std::vector<std::uint8_t> payload;
  kvwire::BatchEncoder(kvwire::KVEventsConfig::Extensions{}).Encode(publisher.batches()[0], &payload);
  for (const std::uint8_t byte : payload) std::printf("%02x", static_cast<unsigned>(byte));
  std::printf("\n");
  // An array of three: time, events, rank.
  return !payload.empty() && payload.front() == 0x93 ? 0 : 1;
}
