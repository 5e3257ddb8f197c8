// SPDX-License-Identifier: Apache-2.0
#include "kv_events/event_publisher.h"

#include <utility>

namespace kvwire {

PublishResult NullEventPublisher::Publish(KVEventBatch&&) noexcept { return PublishResult::kAccepted; }

void NullEventPublisher::Close(std::chrono::milliseconds) noexcept {}

PublishResult CollectingEventPublisher::Publish(KVEventBatch&& batch) noexcept {
  ++stats_.submitted;
  if (closed_) {
    ++stats_.dropped_closed;
    return PublishResult::kDroppedClosed;
  }
  if (!batch.data_parallel_rank) batch.data_parallel_rank = rank_;
  batches_.push_back(std::move(batch));
  ++stats_.sent;
  return PublishResult::kAccepted;
}

void CollectingEventPublisher::Close(std::chrono::milliseconds) noexcept { closed_ = true; }

std::vector<KVEventBatch> CollectingEventPublisher::TakeBatches() noexcept { return std::exchange(batches_, {}); }

}  // namespace kvwire
