// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/snapshot_walks.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <utility>

#include "kv_events/wire/extensions.h"

namespace kvwire {

SnapshotWalks::SnapshotWalks(Options options, StateRequests* requests)
    : options_(std::move(options)), requests_(requests) {}

SnapshotWalks::Walk* SnapshotWalks::Find(std::uint64_t number) {
  const auto found = std::ranges::find(walks_, number, &Walk::number);
  return found == walks_.end() ? nullptr : &*found;
}

bool SnapshotWalks::Wanted(const Walk& walk, SnapshotShape shape) const {
  return std::ranges::any_of(tickets_, [&](const auto& entry) {
    const Ticket& ticket = entry.second;
    return ticket.walk == walk.number && ticket.shape == shape && !ticket.given_up;
  });
}

SnapshotWalks::TicketId SnapshotWalks::Join(SnapshotShape shape, MonotonicNanos now) {
  Ticket& ticket = tickets_[++last_ticket_];
  ticket.shape = shape;
  ticket.since = now;
  Seat(&ticket);
  Allow();
  return last_ticket_;
}

// In the walk that has not begun yet, or a new one, if there may be one more.
void SnapshotWalks::Seat(Ticket* ticket) {
  if (walks_.empty() || walks_.back().stage != Walk::Stage::kAsked) {
    if (walks_.size() >= kMaxWalks) return;
    walks_.emplace_back().number = requests_->AskWalk();
  }
  ticket->walk = walks_.back().number;
}

SnapshotWalks::Offer SnapshotWalks::Next(TicketId id, MonotonicNanos now) {
  Ticket& ticket = tickets_.at(id);
  if (ticket.walk == 0) Seat(&ticket);
  const Walk* walk = Find(ticket.walk);
  if (ticket.ended || ticket.given_up) return {Offer::Kind::kEnd, {}, 0, nullptr};
  if (walk != nullptr && walk->stage == Walk::Stage::kFailed) {
    ticket.given_up = true;
    failed_.Add(1);
    return {Offer::Kind::kEnd, {}, 0, nullptr};
  }
  if (walk == nullptr || walk->stage == Walk::Stage::kAsked) return Wait(&ticket, walk, now);
  if (ticket.shape == SnapshotShape::kChunks) {
    Offer offer = NextChunk(ticket, *walk);
    return offer.kind == Offer::Kind::kWait ? Wait(&ticket, walk, now) : offer;
  }
  if (!walk->whole) return Wait(&ticket, walk, now);
  // A stream without a batch has no last number; 0 is told then, with an empty state.
  const SequenceNumber watermark = walk->end_number == 0 ? 0 : walk->end_number - 1;
  return {Offer::Kind::kMessage, {}, watermark, walk->whole};
}

SnapshotWalks::Offer SnapshotWalks::NextChunk(const Ticket& ticket, const Walk& walk) const {
  const std::uint64_t at = ticket.index - walk.base;
  if (at < walk.chunks.size()) {
    const Chunk& chunk = walk.chunks[at];
    return {Offer::Kind::kMessage, kChunkName, chunk.number, chunk.payload};
  }
  if (walk.stage != Walk::Stage::kFinished) return {};
  return {Offer::Kind::kMessage, kSnapshotEndName, walk.end_number, walk.end_digest};
}

// How long it waits is up to the host, unless the walk is over and only has to be put together.
SnapshotWalks::Offer SnapshotWalks::Wait(Ticket* ticket, const Walk* walk, MonotonicNanos now) {
  const bool running = walk != nullptr && walk->stage == Walk::Stage::kRunning;
  const MonotonicNanos patience = running ? kPatienceInside : kPatience;
  if (walk != nullptr && walk->stage == Walk::Stage::kFinished) return {};
  if (now - std::max(ticket->since, last_chunk_) <= patience) return {};
  ticket->given_up = true;
  unanswered_ = unanswered_ || (walk != nullptr && !running);
  failed_.Add(1);
  return {Offer::Kind::kEnd, {}, 0, nullptr};
}

void SnapshotWalks::Advance(TicketId id) {
  Ticket& ticket = tickets_.at(id);
  const Walk* walk = Find(ticket.walk);
  assert(walk != nullptr);
  if (ticket.shape == SnapshotShape::kChunks && ticket.index < walk->base + walk->chunks.size()) {
    ++ticket.index;
  } else {
    ticket.ended = true;
    sent_.Add(1);
  }
  Trim();
}

void SnapshotWalks::Leave(TicketId id) {
  tickets_.erase(id);
  Trim();
}

bool SnapshotWalks::HoldsUp(TicketId id) const {
  const Ticket& ticket = tickets_.at(id);
  const auto walk = std::ranges::find(walks_, ticket.walk, &Walk::number);
  if (walk == walks_.end() || walk->over() || !Full(*walk) || ticket.index != walk->base) return false;
  return std::ranges::any_of(tickets_, [&](const auto& entry) {
    const Ticket& other = entry.second;
    return other.walk != ticket.walk && !other.ended && !other.given_up;
  });
}

// Frees what no client has before it any more.
void SnapshotWalks::Trim() {
  std::size_t total = 0;
  for (Walk& walk : walks_) {
    std::uint64_t slowest = walk.base + walk.chunks.size();
    for (const auto& [id, ticket] : tickets_) {
      const bool waits = ticket.walk == walk.number && ticket.shape == SnapshotShape::kChunks;
      if (waits && !ticket.ended && !ticket.given_up) slowest = std::min(slowest, ticket.index);
    }
    for (; walk.base < slowest; ++walk.base) {
      walk.bytes -= walk.chunks.front().payload->size();
      walk.chunks.pop_front();
    }
    total += walk.bytes;
  }
  std::erase_if(walks_, [this](const Walk& walk) {
    return walk.over() &&
           std::ranges::none_of(tickets_, [&](const auto& entry) { return entry.second.walk == walk.number; });
  });
  bytes_.Set(total);
}

// The walk that a chunk belongs to. One that was asked for earlier and never began was passed over: who waits for it is
// served by this one; one that began will not end.
SnapshotWalks::Walk* SnapshotWalks::Begin(std::uint64_t number) {
  Walk* walk = Find(number);
  if (walk == nullptr || walk->over()) return nullptr;
  for (Walk& earlier : walks_) {
    if (earlier.number >= number || earlier.over()) continue;
    if (earlier.stage == Walk::Stage::kAsked && walk->stage == Walk::Stage::kAsked) {
      for (auto& [id, ticket] : tickets_) {
        if (ticket.walk == earlier.number) ticket.walk = number;
      }
    }
    Fail(&earlier);
  }
  if (walk->stage == Walk::Stage::kAsked) {
    walk->stage = Walk::Stage::kRunning;
    if (Wanted(*walk, SnapshotShape::kWhole)) {
      walk->merger = std::make_unique<StateMerger>(options_.encode, options_.max_payload_bytes);
    }
  }
  return walk;
}

bool SnapshotWalks::TakeChunk(QueuedBatch* chunk, SequenceNumber next, const SharedBytes& digest, MonotonicNanos now) {
  ++received_;
  last_chunk_ = now;
  unanswered_ = false;
  Walk* walk = Begin(chunk->walk);
  bool good = true;
  if (walk != nullptr) {
    const bool whole = chunk->number == next;
    if (!whole) NoteLoss();
    good = !Wanted(*walk, SnapshotShape::kChunks) || Encode(walk, *chunk);
    if (good && chunk->last) Finish(walk, *chunk, whole ? digest : nullptr);
    if (good && walk->merger) Merge(walk, chunk);
    if (!good) Fail(walk);
  }
  Trim();
  Allow();
  return good;
}

bool SnapshotWalks::Encode(Walk* walk, const QueuedBatch& chunk) {
  try {
    scratch_.clear();
    options_.encode(chunk.batch, &scratch_);
    if (scratch_.size() > options_.max_payload_bytes) return false;
    walk->chunks.push_back(
        {chunk.number, std::make_shared<const std::vector<std::uint8_t>>(scratch_.begin(), scratch_.end())});
    walk->bytes += scratch_.size();
    return true;
  } catch (...) {
    return false;
  }
}

void SnapshotWalks::Merge(Walk* walk, QueuedBatch* chunk) {
  const double ts = chunk->batch.ts;
  const std::optional<std::int64_t> rank = chunk->batch.data_parallel_rank;
  walk->merger->Add(std::move(chunk->batch));
  if (chunk->last) walk->merger->Finish(ts, rank);
  if (walk->merger->failed()) walk->merger.reset();
}

void SnapshotWalks::Finish(Walk* walk, const QueuedBatch& chunk, const SharedBytes& digest) {
  walk->stage = Walk::Stage::kFinished;
  walk->end_number = chunk.number;
  walk->end_digest = digest;
  if (!chunk.batch.has_digest) return;
  std::vector<std::uint8_t> bytes;
  EncodeDigest(chunk.batch.digest.entries(), &bytes);
  walk->end_digest = std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes));
}

void SnapshotWalks::Fail(Walk* walk) {
  walk->stage = Walk::Stage::kFailed;
  walk->chunks.clear();
  walk->bytes = 0;
  walk->merger.reset();
}

void SnapshotWalks::NoteLoss() {
  for (Walk& walk : walks_) {
    if (walk.stage == Walk::Stage::kRunning && walk.merger) walk.merger->NoteLoss();
  }
}

void SnapshotWalks::NoteBatch(KVEventBatch&& batch) {
  for (Walk& walk : walks_) {
    if (walk.stage != Walk::Stage::kRunning || !walk.merger) continue;
    walk.merger->Add(std::move(batch));
    return;
  }
}

std::size_t SnapshotWalks::DoWork() {
  std::size_t done = 0;
  for (Walk& walk : walks_) {
    if (walk.stage != Walk::Stage::kFinished || walk.whole || !Wanted(walk, SnapshotShape::kWhole)) continue;
    if (walk.merger && walk.merger->AssembleSome(kBlocksPerCall)) {
      ++done;
    } else if (walk.merger && !walk.merger->failed()) {
      walk.whole = walk.merger->Take();
      walk.merger.reset();
      ++done;
    } else {
      // Clients that took the chunks need no whole state.
      walk.merger.reset();
      for (auto& [id, ticket] : tickets_) {
        if (ticket.walk != walk.number || ticket.shape != SnapshotShape::kWhole || ticket.given_up) continue;
        ticket.given_up = true;
        failed_.Add(1);
      }
      ++done;
    }
    break;
  }
  Allow();
  return done;
}

void SnapshotWalks::Allow() {
  const auto running = std::ranges::find_if(walks_, [](const Walk& walk) { return !walk.over(); });
  if (running == walks_.end() || Full(*running)) return;
  requests_->AllowChunks(received_ + (kChunksAhead - running->chunks.size()));
}

}  // namespace kvwire
