// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "kv_events/clock.h"
#include "kv_events/transport/zmq_link.h"

namespace kvwire {

// The work of one publisher, to be done again and again by one thread.
class PublishTask {
 public:
  virtual ~PublishTask() = default;

  // Returns how much was done; 0 means that there is nothing to do until a link has input or the runner is woken.
  virtual std::size_t DoWork(MonotonicNanos now) noexcept = 0;

  // When DoWork is to be called although neither happens. Asked by the same thread.
  virtual MonotonicNanos due() const noexcept { return std::numeric_limits<MonotonicNanos>::max(); }

  // What to wait on. Links go only during DoWork.
  virtual void AppendLinks(std::vector<ZmqLink*>* links) const = 0;

  // Whether batches wait: asked for after the runner has said that it is about to sleep.
  virtual bool HasWork() noexcept = 0;
};

// A host's thread that runs publishers, in place of a thread for each.
//
// Threads: Add and Remove by any thread but the runner's own; Wake by any.
class PublishRunner {
 public:
  virtual ~PublishRunner() = default;

  // The task outlives its stay.
  virtual void Add(PublishTask* task) = 0;
  // When it returns, the task is no longer used.
  virtual void Remove(PublishTask* task) = 0;
  virtual void Wake() noexcept = 0;
};

}  // namespace kvwire
