// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kv_events/config.h"
#include "kv_events/error.h"
#include "kv_events/event_publisher.h"
#include "kv_events/fork_guard.h"
#include "kv_events/publish/counter.h"
#include "kv_events/publish/factory.h"
#include "kv_events/publish/publish_queue.h"
#include "kv_events/publish/publisher_agent.h"
#include "kv_events/transport/endpoint.h"
#include "kv_events/transport/zmq_link.h"

namespace kvwire {

// Publishes over ZeroMQ, with replay if the configuration names an endpoint for it: a queue, an agent, and the thread
// that runs the agent and owns the sockets, its own or options.runner's. Contract: EventPublisher.
//
// Publish is wait-free and makes no system call. With options.host_wakes its own thread sleeps until Wake, at most
// 50 ms; without, it looks every 200 microseconds. Either way a replay request wakes it.
//
// In a forked child Publish gives kUsedAfterFork, nothing touches the parent's sockets and thread, and what the thread
// may have been changing is not destroyed.
//
// Errors: a peer that never comes, and connections that the system refuses, are one warning per episode in the log.
// Bounds: Close returns within its deadline and half a second, whatever the peers do; what they have not taken by then
//   is lost. Queue and replay buffer as the configuration says. A subscriber may ask for 256 KiB of topics, all
//   together for 4 MiB; who is above is disconnected.
class ZmqPublisher final : public EventPublisher, private PublishTask {
 public:
  // Validates, binds, starts the thread. `encode` replaces the encoder, for tests that make it fail or wait.
  static Result<std::unique_ptr<ZmqPublisher>> Create(const KVEventsConfig& config, const PublisherOptions& options,
                                                      PublisherAgent::EncodeFunction encode = {});
  ~ZmqPublisher() override;

  PublishResult Publish(KVEventBatch&& batch) noexcept override;
  PublishResult PublishChunk(StateChunk&& chunk) noexcept override;
  bool HasRoom() const noexcept override { return !queue_.forked() && queue_->HasRoom(); }
  StateWants state_wants() const noexcept override { return agent_->wants(); }
  bool resyncs_after_loss() const noexcept override { return resyncs_; }
  KVEventBatch TakeSpare() noexcept override { return queue_.forked() ? KVEventBatch() : queue_->TakeSpare(); }
  void Wake() noexcept override;
  using EventPublisher::Close;
  void Close(std::chrono::milliseconds deadline) noexcept override;
  PublisherStats stats() const noexcept override;
  std::optional<EventSourceInfo> source() const override { return source_; }

  // Why a batch was last lost, empty if none ever was; kForkedText in a forked child.
  std::string last_error() const { return agent_.forked() ? std::string(kForkedText) : agent_->last_error(); }

 private:
  struct Links {
    std::unique_ptr<ZmqLink> publish;
    std::unique_ptr<ZmqLink> replay;
    bool binds = false;
  };

  static Result<Links> OpenLinks(const KVEventsConfig& config, const PublisherOptions& options);

  ZmqPublisher(const KVEventsConfig& config, const PublisherOptions& options, PublisherAgent::EncodeFunction encode,
               Links links);
  Status Start();
  void AnnounceSockets() const;
  Status StartThread();
  void Run() noexcept;
  void Park() noexcept;
  std::chrono::microseconds TimeUntil(MonotonicNanos time) const;

  std::size_t DoWork(MonotonicNanos now) noexcept override;
  MonotonicNanos due() const noexcept override { return agent_->due(); }
  void AppendLinks(std::vector<ZmqLink*>* links) const override;
  bool HasWork() noexcept override;

  void WarnIfAlone(MonotonicNanos now);
  void WarnOfNobody() const;
  void WarnIfRefusing(MonotonicNanos now);
  void NoteCut(MonotonicNanos now);
  void CloseLinks() noexcept;

  // Constant after construction.
  const PublisherOptions options_;
  const std::int64_t rank_;
  const bool binds_;
  const bool resyncs_;
  EventSourceInfo source_;
  std::string exposed_;  // the first of the addresses that is bound on every interface; empty: none

  Unforked<PublishQueue> queue_;
  // Used by the publishing thread once it runs.
  std::unique_ptr<ZmqLink> publish_;
  std::unique_ptr<ZmqLink> replay_;
  Unforked<std::unique_ptr<FrameLink>> decorated_;  // before publish_; null without decoration
  Unforked<PublisherAgent> agent_;
  bool watching_peers_;  // until the first peer or the warning that there is none
  MonotonicNanos started_ = 0;
  std::uint64_t accept_failed_ = 0;  // connections, on both sockets
  bool refusing_ = false;
  MonotonicNanos last_accept_failure_ = 0;
  Counter cut_;  // subscribers' connections
  std::uint64_t cut_reported_ = 0;
  MonotonicNanos cut_report_ = 0;

  WakeSignal signal_;
  std::atomic<bool> parked_{false};
  std::atomic<bool> closing_{false};
  std::atomic<bool> stopping_{false};
  std::chrono::steady_clock::time_point deadline_;  // set before stopping_
  std::atomic<bool> closed_{false};                 // the links are gone
  Unforked<std::thread> thread_;                    // without a runner
};

}  // namespace kvwire
