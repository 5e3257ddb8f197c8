// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <utility>

#include "kv_events/event_publisher.h"

namespace kvwire::test {

// Passes every call on: the base of those that note some of them. The publisher must outlive it.
class ForwardingPublisher : public EventPublisher {
 public:
  explicit ForwardingPublisher(EventPublisher* publisher) : publisher_(publisher) {}

  PublishResult Publish(KVEventBatch&& batch) noexcept override { return publisher_->Publish(std::move(batch)); }
  PublishResult PublishChunk(StateChunk&& chunk) noexcept override {
    return publisher_->PublishChunk(std::move(chunk));
  }
  KVEventBatch TakeSpare() noexcept override { return publisher_->TakeSpare(); }
  bool HasRoom() const noexcept override { return publisher_->HasRoom(); }
  StateWants state_wants() const noexcept override { return publisher_->state_wants(); }
  bool resyncs_after_loss() const noexcept override { return publisher_->resyncs_after_loss(); }
  void Wake() noexcept override { publisher_->Wake(); }
  using EventPublisher::Close;
  void Close(std::chrono::milliseconds deadline) noexcept override { publisher_->Close(deadline); }
  PublisherStats stats() const noexcept override { return publisher_->stats(); }

 private:
  EventPublisher* const publisher_;
};

}  // namespace kvwire::test
