// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/rank.h"

#include <algorithm>
#include <thread>

#include <fmt/format.h>

namespace kvwire::engine {

namespace {

// How far a stream jumps when nothing else is asked for: less than what a consumer would take for a broken number.
constexpr SequenceNumber kRestartSkip = 3;
constexpr std::chrono::milliseconds kRestartDeadline(500);
// How long a replaced engine waits for its own addresses.
constexpr std::chrono::milliseconds kRebindTime(2000);
constexpr std::chrono::milliseconds kRebindLook(20);

}  // namespace

Status Rank::Prepare() {
  auto first = std::make_shared<RankLife>(surroundings_, &faults_, 0);
  if (Status prepared = first->Prepare(std::nullopt); !prepared) return prepared;
  const std::lock_guard<std::mutex> lock(mutex_);
  life_ = std::move(first);
  return {};
}

void Rank::Start() { life()->Start(SleepState::kAwake); }

Status Rank::Restart(const RestartOptions& options, std::optional<std::uint64_t> only) {
  if (options.first_number.value_or(0) > FaultScript::kMaxNumber) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("first_number: {}; allowed: 0 to {}", *options.first_number, FaultScript::kMaxNumber));
  }
  const std::lock_guard<std::mutex> replace_lock(replace_mutex_);
  if (stopped_) return MakeError(ErrorCode::kUnavailable, "the engine was stopped");
  const std::shared_ptr<RankLife> old = life();
  if (only && *only != old->number()) return {};
  replacing_.store(true, std::memory_order_relaxed);
  old->Stop(kRestartDeadline);
  const SequenceNumber past = std::min(old->next_batch() + kRestartSkip, FaultScript::kMaxNumber);
  const SequenceNumber first_number = options.first_number.value_or(past);
  Result<std::shared_ptr<RankLife>> made = Succeed(*old, first_number);
  if (!made) return tl::unexpected<Error>(std::move(made).error());
  // Whoever waits for a wake_up waits on.
  (*made)->Start(old->sleep_state());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    life_ = *std::move(made);
  }
  replacing_.store(false, std::memory_order_relaxed);
  faults_.counters.Count(FaultKind::kRestart);
  Log(surroundings_.config->log, LogLevel::kWarning,
      fmt::format("data-parallel rank {}: restarted on purpose; numbers begin with {}", surroundings_.index,
                  first_number));
  return {};
}

// The addresses become free when the connections of the old life are gone.
Result<std::shared_ptr<RankLife>> Rank::Succeed(const RankLife& old, SequenceNumber first_number) {
  const PublisherSuccession succession{old.publisher().source(), first_number};
  const auto give_up = std::chrono::steady_clock::now() + kRebindTime;
  for (;;) {
    auto next = std::make_shared<RankLife>(surroundings_, &faults_, old.number() + 1);
    const Status prepared = next->Prepare(succession);
    if (prepared) return next;
    if (prepared.error().code != ErrorCode::kAddressInUse || std::chrono::steady_clock::now() >= give_up) {
      return tl::unexpected<Error>(prepared.error());
    }
    std::this_thread::sleep_for(kRebindLook);
  }
}

void Rank::Stop(std::chrono::milliseconds deadline) {
  const std::lock_guard<std::mutex> lock(replace_mutex_);
  stopped_ = true;
  if (const std::shared_ptr<RankLife> last = life()) last->Stop(deadline);
}

void Rank::SetFaults(const std::shared_ptr<const FaultScript>& script) {
  for (FaultPlan& plan : faults_.plans) plan.Set(script);
}

}  // namespace kvwire::engine
