// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/stream_set.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "kv_events/clock.h"
#include "kv_events/escape_text.h"
#include "kv_events/transport/zmq_link.h"

namespace kvwire {

// A thread and its streams. What others want of it comes as tasks, run between two rounds.
class StreamSet::Worker {
 public:
  using Task = std::function<void(std::vector<WatchedStream*>* streams)>;

  Worker() : thread_([this] { Run(); }) {}
  ~Worker() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.Wake();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Tasks are done in the order in which they came.
  void Post(Task task) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Push(std::move(task));
  }
  // Returns when it was done.
  void Do(Task task) {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::uint64_t ticket = Push(std::move(task));
    changed_.wait(lock, [this, ticket] { return done_ >= ticket; });
  }

 private:
  // The task's number. REQUIRES: mutex_ is held.
  std::uint64_t Push(Task task) {
    tasks_.push_back(std::move(task));
    wake_.Wake();
    return ++asked_;
  }

  // False when the worker is to end.
  bool RunTasks() {
    std::vector<Task> tasks;
    bool stopping = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      tasks.swap(tasks_);
      stopping = stopping_;
    }
    for (const Task& task : tasks) task(&streams_);
    if (!tasks.empty()) {
      const std::lock_guard<std::mutex> lock(mutex_);
      done_ += tasks.size();
      changed_.notify_all();
    }
    return !stopping;
  }

  void Run() {
    const Clock& clock = SystemClock::Get();
    std::vector<ZmqLink*> links;
    while (RunTasks()) {
      int work = 0;
      const MonotonicNanos now = clock.Now();
      for (WatchedStream* const stream : streams_) work += stream->DoWork(now);
      if (work > 0) continue;
      links.clear();
      for (const WatchedStream* const stream : streams_) stream->AppendLinks(&links);
      WaitForInput(links, &wake_, WatchedStream::kLook);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::vector<Task> tasks_;
  std::uint64_t asked_ = 0;  // tasks, ever
  std::uint64_t done_ = 0;
  bool stopping_ = false;

  WakeSignal wake_;
  std::vector<WatchedStream*> streams_;  // of the thread
  std::thread thread_;
};

StreamSet::StreamSet(Options options)
    : options_(std::move(options)), context_(options_.context ? options_.context : ZmqContext::Shared()) {
  constexpr std::size_t kMostThreads = 64;
  const std::size_t count = std::clamp<std::size_t>(options_.num_threads, 1, kMostThreads);
  for (std::size_t i = 0; i < count; ++i) workers_->push_back(std::make_unique<Worker>());
}

StreamSet::~StreamSet() { RemoveAll(); }

Status StreamSet::Add(const StreamAddress& address) {
  if (places_.forked()) {
    return MakeError(ErrorCode::kUnavailable,
                     fmt::format("stream \"{}\": the set of streams was {}", ShortText(address.name), kForkedText));
  }
  const std::lock_guard<std::mutex> changing(changing_);
  Place place;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (places_->contains(address.name)) {
      return MakeError(
          ErrorCode::kInvalidArgument,
          fmt::format("name \"{}\": there is a stream of this name; allowed: a new name", ShortText(address.name)));
    }
    if (places_->size() >= options_.max_streams) {
      return MakeError(ErrorCode::kUnavailable,
                       fmt::format("stream \"{}\": there are {} streams; allowed: {} at most", ShortText(address.name),
                                   places_->size(), options_.max_streams));
    }
    place.worker = LeastBusy();
  }
  if (Status connects = CheckConnects(address.endpoint, "endpoint"); !connects) return connects;
  if (address.replay_endpoint) {
    if (Status connects = CheckConnects(*address.replay_endpoint, "replay_endpoint"); !connects) return connects;
  }
  std::unique_ptr<CheckedSink> sink;
  if (options_.make_sink) {
    auto made = options_.make_sink(address);
    if (!made) return tl::unexpected<Error>(made.error());
    sink = *std::move(made);
  } else {
    StreamChecker::Options check = options_.check;
    check.rank = address.rank;
    sink = std::make_unique<StreamChecker>(check, nullptr);
  }
  auto stream = WatchedStream::Create(context_, address, options_.stream, std::move(sink));
  if (!stream) return tl::unexpected<Error>(stream.error());
  place.stream = *std::move(stream);
  // Nobody waits for a round over all streams: whatever is asked of this one later comes behind.
  (*workers_)[place.worker]->Post(
      [added = place.stream.get()](std::vector<WatchedStream*>* streams) { streams->push_back(added); });
  const std::lock_guard<std::mutex> lock(mutex_);
  places_->emplace(address.name, std::move(place));
  return {};
}

std::optional<StreamSet::Ended> StreamSet::Remove(std::string_view name) {
  if (places_.forked()) return std::nullopt;
  const std::lock_guard<std::mutex> changing(changing_);
  std::optional<Place> place = TakeOut(name);
  if (!place) return std::nullopt;
  return End(*place);
}

std::vector<StreamSet::Ended> StreamSet::RemoveAll() {
  if (places_.forked()) return {};
  const std::lock_guard<std::mutex> changing(changing_);
  std::map<std::string, Place, std::less<>> places;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    places.swap(*places_);
  }
  std::vector<Ended> ended(places.size());
  // A task waits for its thread's round over all streams: one for each thread, not for each stream.
  for (std::size_t worker = 0; worker < workers_->size(); ++worker) {
    (*workers_)[worker]->Do([&places, &ended, worker](std::vector<WatchedStream*>* streams) {
      streams->clear();
      std::size_t i = 0;
      for (const auto& [name, place] : places) {
        if (place.worker == worker) ended[i] = Finish(place.stream.get());
        ++i;
      }
    });
  }
  return ended;
}

StreamSet::Ended StreamSet::End(const Place& place) {
  Ended ended;
  (*workers_)[place.worker]->Do([&place, &ended](std::vector<WatchedStream*>* streams) {
    std::erase(*streams, place.stream.get());
    ended = Finish(place.stream.get());
  });
  return ended;
}

StreamSet::Ended StreamSet::Finish(WatchedStream* stream) {
  stream->Finish(SystemClock::Get().Now());
  stream->Close();
  Ended ended;
  ended.figures = stream->figures();
  ended.sink = stream->TakeSink();
  return ended;
}

void StreamSet::Confirm() {
  if (places_.forked()) return;
  const std::lock_guard<std::mutex> changing(changing_);
  for (const auto& worker : *workers_) {
    worker->Do([](std::vector<WatchedStream*>* streams) {
      for (WatchedStream* const stream : *streams) stream->Confirm(SystemClock::Get().Now());
    });
  }
}

std::vector<StreamFigures> StreamSet::Snapshot() const {
  if (places_.forked()) return {};
  std::vector<std::shared_ptr<const WatchedStream>> streams;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    streams.reserve(places_->size());
    for (const auto& [name, place] : *places_) streams.push_back(place.stream);
  }
  std::vector<StreamFigures> figures;
  figures.reserve(streams.size());
  for (const auto& stream : streams) figures.push_back(stream->figures());
  return figures;
}

std::size_t StreamSet::size() const {
  if (places_.forked()) return 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  return places_->size();
}

std::optional<StreamSet::Place> StreamSet::TakeOut(std::string_view name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = places_->find(name);
  if (found == places_->end()) return std::nullopt;
  Place place = std::move(found->second);
  places_->erase(found);
  return place;
}

// REQUIRES: mutex_ is held.
std::size_t StreamSet::LeastBusy() const {
  std::vector<std::size_t> counts(workers_->size());
  for (const auto& [name, place] : *places_) ++counts[place.worker];
  return static_cast<std::size_t>(std::min_element(counts.begin(), counts.end()) - counts.begin());
}

}  // namespace kvwire
