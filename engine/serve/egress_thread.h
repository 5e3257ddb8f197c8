// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/serve/output_stream.h"
#include "kv_events/publish/publish_runner.h"

namespace kvwire::engine {

// Tokens for one request.
struct Delivery {
  std::shared_ptr<OutputStream> to;
  OutputChunk chunk;
};

// Where everything leaves the engines of a process: it hands tokens to those who wait for them and runs the publishers,
// so that a step wakes one thread, once.
//
// Threads: Deliver and Wake by any thread. Ownership: outlives the publishers that it runs.
// Bounds: a delivery waits until the thread's next look; publishers do a bounded part of their work at a time.
class EgressThread final : public PublishRunner {
 public:
  static Result<std::unique_ptr<EgressThread>> Create();
  ~EgressThread() override;
  EgressThread(const EgressThread&) = delete;
  EgressThread& operator=(const EgressThread&) = delete;

  // Takes the deliveries of a step; they arrive in the order of the calls. Does not wake.
  void Deliver(std::vector<Delivery> deliveries);

  void Add(PublishTask* task) override;
  void Remove(PublishTask* task) override;
  void Wake() noexcept override;

 private:
  EgressThread() = default;

  void Loop() noexcept;
  std::size_t HandOver();
  std::size_t Publish();
  void Park();
  bool HasWork();

  WakeSignal signal_;
  std::atomic<bool> parked_{false};
  std::atomic<bool> stopping_{false};

  std::mutex deliveries_mutex_;
  std::vector<Delivery> deliveries_;  // guarded by deliveries_mutex_

  std::mutex tasks_mutex_;                      // held while a task works
  std::vector<PublishTask*> tasks_;             // guarded by tasks_mutex_
  std::vector<ZmqLink*> links_;                 // the thread's
  std::chrono::microseconds longest_sleep_{0};  // until a publisher has something to do by itself

  std::thread thread_;
};

}  // namespace kvwire::engine
