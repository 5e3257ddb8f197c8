// SPDX-License-Identifier: Apache-2.0
// What the scheduler does with blocks that go from engine to engine.
#include <algorithm>
#include <utility>

#include "scheduler/scheduler.h"

namespace kvwire::scheduler {

// The request waits on, and nothing behind it is looked at; false if it may try again at once.
bool Scheduler::CannotAllocate(Request* request, std::uint32_t budget, const SchedulerOutput& step) {
  // Whoever runs, receives or is being stored gives blocks back by itself.
  const bool nothing_goes_on =
      step.empty() && running_.empty() && receiving_.empty() && !has_stores_in_flight() && !in_flight_;
  if (nothing_goes_on && MakeRoom(request)) return false;
  blocked_ = Blocked{request, pool().version(), budget};
  return true;
}

// Gives up what waits without being used, or else what the request itself has received. False if there is nothing.
bool Scheduler::MakeRoom(Request* request) {
  if (GiveUpUnused(request)) return true;
  if (request->num_received_tokens == 0) return false;
  cache_.Free(request);
  return true;
}

// One other request's blocks: received ones, which stay cached, then the oldest that are kept. False if there are none.
bool Scheduler::GiveUpUnused(const Request* request) {
  for (auto holder = waiting_.rbegin(); holder != waiting_.rend(); ++holder) {
    if (*holder == request || (*holder)->num_received_tokens == 0) continue;
    cache_.Free(*holder);
    return true;
  }
  if (kept_.empty()) return false;
  ++stats_.kept_given_up;
  return ReleaseKept(kept_.front().first);
}

// Takes the first waiting request to those that receive, or finds that there is nothing to receive for it. False if
// there are not enough blocks.
bool Scheduler::TryReceive(Request* request, SchedulerOutput* step) {
  const std::uint32_t num_tokens = cache_.TransferableTokens(request->num_tokens(), request->num_receivable_tokens);
  const PrefixHit hit = cache_.GetDeviceBlocks(*request);
  Reception reception{request->id(), num_tokens, {}};
  if (num_tokens > hit.num_tokens) {
    if (!cache_.BeginReception(request, num_tokens, hit, &reception)) return false;
    waiting_.pop_front();
    receiving_.push_back(request);
    ++stats_.receptions;
  }
  request->num_receivable_tokens = 0;
  step->receptions.push_back(std::move(reception));
  return true;
}

bool Scheduler::is_receiving(RequestId id) const {
  return std::any_of(receiving_.begin(), receiving_.end(),
                     [id](const Request* request) { return request->id() == id; });
}

bool Scheduler::OnReceived(RequestId id, Arrival arrival) {
  if (!is_receiving(id)) return false;
  Request* const request = requests_.at(id).get();
  switch (arrival) {
    case Arrival::kComplete:
      cache_.EndReception(request);
      std::erase(receiving_, request);
      waiting_.push_front(request);
      break;
    case Arrival::kFailed:
      ++stats_.failed_receptions;
      StopReceiving(request);
      break;
  }
  blocked_ = {};
  // What a step in flight has registered is not computed yet.
  if (!in_flight_) cache_.pool().AnnouncePending();
  FlushOutsideStep();
  return true;
}

// It is computed.
void Scheduler::StopReceiving(Request* request) {
  std::erase(receiving_, request);
  cache_.Free(request);
  waiting_.push_front(request);
}

// Of what a failed load has spoilt: whoever received on top of it, and has no part in the step.
void Scheduler::RestartHoldersOf(const std::unordered_set<BlockId>& bad) {
  const auto holds_bad = [&bad](const Request* request) {
    return std::any_of(request->block_tables.begin(), request->block_tables.end(), [&bad](const auto& table) {
      return std::any_of(table.begin(), table.end(), [&bad](BlockId block) { return bad.contains(block); });
    });
  };
  for (std::size_t i = receiving_.size(); i-- > 0;) {
    if (holds_bad(receiving_[i])) StopReceiving(receiving_[i]);
  }
  for (Request* const request : waiting_) {
    if (request->num_received_tokens > 0 && holds_bad(request)) cache_.Free(request);
  }
}

// Nobody but running requests holds a block any more.
void Scheduler::TakeBackTransfers() {
  while (!receiving_.empty()) StopReceiving(receiving_.back());
  for (Request* const request : waiting_) {
    if (request->num_received_tokens > 0) cache_.Free(request);
  }
  while (!kept_.empty()) ReleaseKept(kept_.front().first);
}

bool Scheduler::HoldsBlocks() const {
  return !running_.empty() || !receiving_.empty() || !kept_.empty() ||
         std::any_of(waiting_.begin(), waiting_.end(),
                     [](const Request* request) { return request->num_received_tokens > 0; });
}

void Scheduler::Keep(const Request* request, FinishedRequest* finished) {
  finished->kept = cache_.Keep(request);
  if (finished->kept.num_tokens == 0) return;
  ++stats_.kept_requests;
  kept_by_id_.emplace(request->id(), kept_.insert(kept_.end(), {request->id(), finished->kept}));
  num_kept_blocks_ += CountBlocks(finished->kept);
}

const KeptBlocks* Scheduler::FindKept(RequestId id) const {
  const auto found = kept_by_id_.find(id);
  return found == kept_by_id_.end() ? nullptr : &found->second->second;
}

bool Scheduler::ReleaseKept(RequestId id) {
  const auto found = kept_by_id_.find(id);
  if (found == kept_by_id_.end()) return false;
  const KeptBlocks& kept = found->second->second;
  num_kept_blocks_ -= CountBlocks(kept);
  cache_.FreeKept(kept);
  kept_.erase(found->second);
  kept_by_id_.erase(found);
  return true;
}

}  // namespace kvwire::scheduler
