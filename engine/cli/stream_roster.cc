// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/stream_roster.h"

#include <chrono>
#include <utility>

#include "engine/cli/stop_signal.h"
#include "kv_events/clock.h"

namespace kvwire::engine {

StreamRoster::StreamRoster(std::vector<std::unique_ptr<StreamSource>> sources, Options options)
    : options_(std::move(options)) {
  for (auto& source : sources) sources_.push_back({std::move(source), {}, {}});
}

StreamRoster::~StreamRoster() { Stop(); }

Status StreamRoster::Start() {
  if (Status looked = Look(SystemClock::Get().Now()); !looked) return looked;
  thread_ = std::thread([this] { Run(); });
  return {};
}

void StreamRoster::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StreamRoster::Run() {
  constexpr std::chrono::milliseconds kPause(200);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_.wait_for(lock, kPause, [this] { return stopping_; })) {
    lock.unlock();
    // Whatever is wrong was said.
    [[maybe_unused]] const Status looked = Look(SystemClock::Get().Now());
    lock.lock();
  }
}

Status StreamRoster::Look(MonotonicNanos now) {
  Status first;
  for (Known& known : sources_) {
    Status looked = LookAt(&known, now);
    if (!looked && first && known.source->must_begin_well()) first = std::move(looked);
  }
  Status applied = Apply();
  looked_ = true;
  if (!first) return first;
  return applied;
}

Status StreamRoster::LookAt(Known* known, MonotonicNanos now) {
  auto addresses = known->source->Look(now);
  if (!addresses) {
    const bool news = std::exchange(known->error, addresses.error().message) != addresses.error().message;
    if (news && (looked_ || !known->source->must_begin_well())) Say(known->error);
    return tl::unexpected<Error>(addresses.error());
  }
  if (!*addresses) return {};
  known->error.clear();
  known->addresses = **std::move(addresses);
  for (StreamAddress& address : known->addresses) {
    if (address.topic.empty()) address.topic = options_.topic;
  }
  return {};
}

Status StreamRoster::Apply() {
  std::map<std::string, StreamAddress> wanted;
  for (const Known& known : sources_) {
    for (const StreamAddress& address : known.addresses) wanted.emplace(address.name, address);
  }
  std::erase_if(watched_, [&](const auto& watched) {
    const auto found = wanted.find(watched.first);
    if (found != wanted.end() && found->second == watched.second) return false;
    auto ended = options_.set->Remove(watched.first);
    if (ended && options_.on_ended) options_.on_ended(*ended);
    return true;
  });
  std::erase_if(refused_, [&](const auto& refused) { return !wanted.contains(refused.first); });
  Status first;
  for (const auto& [name, address] : wanted) {
    if (StopRequested()) break;
    if (watched_.contains(name)) continue;
    Status added = options_.set->Add(address);
    if (added) {
      watched_.emplace(name, address);
      refused_.erase(name);
      continue;
    }
    std::string& said = refused_[name];
    if (std::exchange(said, added.error().message) != added.error().message && looked_) Say(said);
    if (first) first = std::move(added);
  }
  return first;
}

void StreamRoster::Say(const std::string& error) { Log(options_.log, LogLevel::kWarning, error); }

}  // namespace kvwire::engine
