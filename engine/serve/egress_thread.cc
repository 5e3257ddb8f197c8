// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/egress_thread.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include <pthread.h>

namespace kvwire::engine {

namespace {

constexpr std::chrono::microseconds kLongestSleep(50'000);

}  // namespace

Result<std::unique_ptr<EgressThread>> EgressThread::Create() {
  std::unique_ptr<EgressThread> egress(new EgressThread);
  if (egress->signal_.fd() < 0) return MakeError(ErrorCode::kUnavailable, "cannot open an event descriptor");
  try {
    egress->thread_ = std::thread([raw = egress.get()] { raw->Loop(); });
  } catch (const std::system_error& error) {
    return MakeError(ErrorCode::kUnavailable, std::string("cannot start the egress thread: ") + error.what());
  }
  return egress;
}

EgressThread::~EgressThread() {
  stopping_.store(true, std::memory_order_release);
  signal_.Wake();
  if (thread_.joinable()) thread_.join();
}

void EgressThread::Deliver(std::vector<Delivery> deliveries) {
  if (deliveries.empty()) return;
  const std::lock_guard<std::mutex> lock(deliveries_mutex_);
  if (deliveries_.empty()) {
    deliveries_ = std::move(deliveries);
  } else {
    std::move(deliveries.begin(), deliveries.end(), std::back_inserter(deliveries_));
  }
}

void EgressThread::Add(PublishTask* task) {
  {
    const std::lock_guard<std::mutex> lock(tasks_mutex_);
    tasks_.push_back(task);
  }
  Wake();
}

void EgressThread::Remove(PublishTask* task) {
  const std::lock_guard<std::mutex> lock(tasks_mutex_);
  std::erase(tasks_, task);
}

// Either this exchange comes after the one in Park, sees true and signals, or it comes before, and then the look that
// follows Park's exchange finds the work.
void EgressThread::Wake() noexcept {
  if (parked_.exchange(false, std::memory_order_acq_rel)) signal_.Wake();
}

void EgressThread::Loop() noexcept {
  pthread_setname_np(pthread_self(), "kvwire-egress");
  while (!stopping_.load(std::memory_order_acquire)) {
    if (HandOver() + Publish() == 0) Park();
  }
  HandOver();
}

std::size_t EgressThread::HandOver() {
  std::vector<Delivery> taken;
  {
    const std::lock_guard<std::mutex> lock(deliveries_mutex_);
    taken.swap(deliveries_);
  }
  for (Delivery& delivery : taken) delivery.to->Push(std::move(delivery.chunk));
  return taken.size();
}

std::size_t EgressThread::Publish() {
  const MonotonicNanos now = SystemClock::Get().Now();
  const std::lock_guard<std::mutex> lock(tasks_mutex_);
  std::size_t work = 0;
  for (PublishTask* task : tasks_) work += task->DoWork(now);
  links_.clear();
  longest_sleep_ = kLongestSleep;
  if (work == 0) {
    for (const PublishTask* task : tasks_) {
      task->AppendLinks(&links_);
      const std::chrono::nanoseconds left(std::max<MonotonicNanos>(task->due() - now, 0));
      longest_sleep_ = std::min(longest_sleep_, std::chrono::ceil<std::chrono::microseconds>(left));
    }
  }
  return work;
}

bool EgressThread::HasWork() {
  {
    const std::lock_guard<std::mutex> lock(deliveries_mutex_);
    if (!deliveries_.empty()) return true;
  }
  const std::lock_guard<std::mutex> lock(tasks_mutex_);
  return std::any_of(tasks_.begin(), tasks_.end(), [](PublishTask* task) { return task->HasWork(); });
}

void EgressThread::Park() {
  parked_.exchange(true, std::memory_order_acq_rel);
  if (!HasWork()) WaitForInput(links_, &signal_, longest_sleep_);
  parked_.exchange(false, std::memory_order_acq_rel);
}

}  // namespace kvwire::engine
