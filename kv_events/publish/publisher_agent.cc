// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/publisher_agent.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/format.h>

namespace kvwire {

namespace {

std::size_t StepsKept(const PublisherAgent::Options& options, const FrameLink* replay) {
  return replay == nullptr ? 0 : options.buffer_steps;
}

bool BeginsWithClear(const KVEventBatch& batch) {
  return !batch.empty() && std::holds_alternative<AllBlocksCleared>(batch.at(0));
}

}  // namespace

StateAnswers::Options PublisherAgent::AnswerOptions(const Options& options, const PublishQueue& queue) {
  StateAnswers::Options answers;
  answers.hello.epoch = options.epoch;
  answers.hello.data_parallel_rank = options.data_parallel_rank;
  answers.hello.first = queue.first_number();
  answers.hello.heartbeat_interval_ms = static_cast<std::uint32_t>(options.heartbeat_interval_ms);
  answers.hello.removals = options.removals;
  answers.snapshot = options.snapshot;
  answers.walks.encode = options.encode;
  answers.walks.max_payload_bytes = options.max_payload_bytes;
  return answers;
}

PublisherAgent::PublisherAgent(Options options, PublishQueue* queue, FrameLink* publish, FrameLink* replay)
    : options_(std::move(options)),
      queue_(queue),
      publish_(publish),
      requests_(options_.on_state_wanted),
      buffer_(StepsKept(options_, replay), options_.buffer_bytes, [this](double ts) { return EncodeHeartbeat(ts); }),
      heartbeats_(options_.heartbeat_interval_ms),
      guard_(options_.restart_guard_s),
      next_(queue->first_number()) {
  assert(options_.encode);
  if (replay == nullptr) return;
  answers_ = std::make_unique<StateAnswers>(AnswerOptions(options_, *queue), &buffer_, &requests_);
  // The whole state is an answer that has no topic anywhere.
  const ReplayLayout layout = options_.snapshot == SnapshotForm::kXllm ? ReplayLayout::kLegacy : options_.replay_layout;
  replay_ = std::make_unique<ReplayService>(options_.topic, layout, replay, &buffer_, answers_.get());
}

std::size_t PublisherAgent::DoWork(MonotonicNanos now) {
  now_ = now;
  if (!started_) {
    started_ = now;
    heartbeats_.Restart(now);
    guard_.Start(now);
  }
  std::size_t done = ReadSubscriptions();
  if (guard_.Take(now)) requests_.AskResync();
  done += PublishQueued();
  ReportOverflow();
  done += SendHeartbeat();
  if (replay_) {
    done += replay_->DoWork(now);
    ReportCrowd();
  }
  requests_.Notify();
  return done;
}

// Subscriptions count only if they let this stream's topic through. Bounded, so that peers who subscribe without end do
// not stop the stream.
std::size_t PublisherAgent::ReadSubscriptions() {
  std::size_t read = 0;
  while (read < kSubscriptionsPerCall) {
    const std::optional<InFrames> frames = publish_->TryReceive();
    if (!frames) break;
    ++read;
    if (frames->size() != 1 || frames->front().empty()) continue;
    const std::span<const std::uint8_t> subscription(frames->front());
    if (!MatchesTopic(subscription.subspan(1))) continue;
    if (subscription.front() == 0) unsubscribed_.Add(1);
    if (subscription.front() != 1) continue;
    subscribed_.Add(1);
    // Who is there before the first batch has missed nothing.
    if (published_) guard_.NoteSubscription(now_);
  }
  return read;
}

bool PublisherAgent::MatchesTopic(std::span<const std::uint8_t> subscription) const {
  const std::string& topic = options_.topic;
  return subscription.size() <= topic.size() &&
         std::equal(subscription.begin(), subscription.end(), topic.begin(),
                    [](std::uint8_t byte, char c) { return byte == static_cast<std::uint8_t>(c); });
}

std::size_t PublisherAgent::PublishQueued() {
  std::size_t done = 0;
  while (done < kBatchesPerCall) {
    QueuedBatch* queued = queue_->Front();
    if (queued == nullptr) break;
    if (queued->kind == QueuedBatch::Kind::kChunk) {
      TakeChunk(queued);
    } else if (!PublishFront(queued)) {
      break;
    }
    ++done;
  }
  return done;
}

// False when the link has no room for it.
bool PublisherAgent::PublishFront(QueuedBatch* queued) {
  const SequenceNumber number = queued->number;
  if (!pending_) pending_ = Encode(*queued);
  if (!pending_) {
    Note(queued, nullptr);
    queue_->Finish(PublishQueue::Outcome::kError);
    return true;
  }
  const SendResult result = Send(number, pending_);
  if (result == SendResult::kWouldBlock) return false;
  const std::size_t size = pending_->size();
  // Kept also when sending failed: then a consumer that sees the gap can still have it.
  Note(queued, std::exchange(pending_, nullptr));
  if (result == SendResult::kSent) {
    bytes_sent_.Add(size);
    heartbeats_.Restart(now_);
    queue_->Finish(PublishQueue::Outcome::kSent);
    Recover();
  } else {
    broken_ = true;
    queue_->Finish(PublishQueue::Outcome::kError);
    Fail(number, "the socket refused it");
  }
  return true;
}

void PublisherAgent::TakeChunk(QueuedBatch* queued) {
  const bool taken = !answers_ || answers_->walks().TakeChunk(queued, answers_->next(), answers_->last_digest(), now_);
  queue_->Finish(taken ? PublishQueue::Outcome::kSent : PublishQueue::Outcome::kError);
}

// Null if it failed.
SharedBytes PublisherAgent::Encode(const QueuedBatch& queued) {
  const MonotonicNanos start = options_.clock->Now();
  SharedBytes payload;
  try {
    // Encoded aside and copied: the buffer holds thousands of payloads, and none may carry spare capacity.
    scratch_.clear();
    options_.encode(queued.batch, &scratch_);
    if (scratch_.size() > options_.max_payload_bytes) {
      throw std::length_error(
          fmt::format("its payload of {} bytes is above {}", scratch_.size(), options_.max_payload_bytes));
    }
    payload = std::make_shared<const std::vector<std::uint8_t>>(scratch_.begin(), scratch_.end());
  } catch (const std::exception& error) {
    Fail(queued.number, error.what());
  } catch (...) {
    Fail(queued.number, "unknown exception");
  }
  encode_nanos_.Add(static_cast<std::uint64_t>(options_.clock->Now() - start));
  return payload;
}

// Null if it failed.
SharedBytes PublisherAgent::EncodeHeartbeat(double ts) {
  try {
    KVEventBatch batch;
    batch.ts = ts;
    batch.data_parallel_rank = options_.data_parallel_rank;
    std::vector<std::uint8_t> payload;
    options_.encode(batch, &payload);
    return std::make_shared<const std::vector<std::uint8_t>>(std::move(payload));
  } catch (...) {
    return nullptr;
  }
}

SendResult PublisherAgent::Send(SequenceNumber number, const SharedBytes& payload) noexcept {
  const MonotonicNanos start = options_.clock->Now();
  const SequenceFrame sequence = EncodeSequence(number);
  const std::string& topic = options_.topic;
  const OutFrame frames[] = {OutFrame::Copy({reinterpret_cast<const std::uint8_t*>(topic.data()), topic.size()}),
                             OutFrame::Copy(sequence), OutFrame::Share(payload)};
  const SendResult result = publish_->TrySend(frames);
  send_nanos_.Add(static_cast<std::uint64_t>(options_.clock->Now() - start));
  return result;
}

// Between a loss and the AllBlocksCleared that heals it there is none: that batch is what comes next. One that the link
// does not take can be replayed.
std::size_t PublisherAgent::SendHeartbeat() {
  if (now_ < heartbeats_.due()) return 0;
  const Heartbeat heartbeat = heartbeats_.Next(options_.clock->WallSeconds());
  const std::optional<SequenceNumber> only =
      options_.overflow == Overflow::kResync ? std::optional(next_) : std::nullopt;
  // The number is taken when there is something to send under it: one that is taken cannot be given back.
  const SharedBytes payload = queue_->NumberToTake(only) ? EncodeHeartbeat(heartbeat.ts()) : nullptr;
  const std::optional<SequenceNumber> number = payload ? queue_->TakeNumber(only) : std::nullopt;
  if (!number) {
    heartbeats_.Restart(now_);
    return 0;
  }
  broken_ = broken_ || *number != next_;
  next_ = *number + 1;
  heartbeats_.Sent(heartbeat, now_);
  if (Send(*number, payload) == SendResult::kSent) bytes_sent_.Add(payload->size());
  if (answers_) {
    answers_->NoteHeartbeat(*number);
    buffer_.AppendHeartbeat(*number, heartbeat, answers_->last_digest());
  }
  NoteBuffer();
  return 1;
}

// A batch leaves the queue; without a payload it is lost. After a loss what was before the resync is of no use.
void PublisherAgent::Note(QueuedBatch* queued, SharedBytes payload) {
  const SequenceNumber number = queued->number;
  broken_ = broken_ || number != next_ || !payload;
  next_ = number + 1;
  published_ = true;
  if (payload && broken_ && options_.overflow == Overflow::kResync && BeginsWithClear(queued->batch)) {
    buffer_.Clear();
    broken_ = false;
  }
  if (answers_) {
    const SharedBytes digest = answers_->DigestOf(queued->batch);
    if (payload) buffer_.Append(number, std::move(payload), digest);
    answers_->NoteBatch(number, std::move(queued->batch), digest);
  }
  NoteBuffer();
}

void PublisherAgent::NoteBuffer() {
  buffered_.Set(buffer_.size());
  buffered_bytes_.Set(buffer_.bytes());
  const std::optional<SequenceNumber> oldest = buffer_.oldest();
  const std::optional<SequenceNumber> newest = buffer_.newest();
  oldest_.Set(oldest ? *oldest + 1 : 0);
  newest_.Set(newest ? *newest + 1 : 0);
}

// Every loss of an episode is healed by what begins after it; the first asks at once, in case that no batch follows.
void PublisherAgent::Fail(SequenceNumber number, const std::string& reason) {
  std::string text = fmt::format("batch {} was not published: {}", number, reason);
  if (failures_++ == 0) {
    Log(options_.log, LogLevel::kError, text);
    if (options_.overflow == Overflow::kResync) requests_.AskResync();
  }
  const std::lock_guard<std::mutex> lock(error_mutex_);
  last_error_ = std::move(text);
}

void PublisherAgent::Recover() {
  if (failures_ == 0) return;
  Log(options_.log, LogLevel::kInfo, fmt::format("publishing again; batches lost: {}", failures_));
  if (failures_ > 1 && options_.overflow == Overflow::kResync) requests_.AskResync();
  failures_ = 0;
}

void PublisherAgent::ReportOverflow() {
  const std::uint64_t dropped = queue_->dropped_full();
  if (dropped != overflow_seen_) {
    if (!overflowing_) {
      overflow_start_ = overflow_seen_;
      const std::string_view follows =
          options_.overflow == Overflow::kResync
              ? "if the engine gives its state, the stream begins again with AllBlocksCleared; else consumers see a gap"
              : "consumers see a gap that nothing fills, as kvwire.overflow is drop";
      Log(options_.log, LogLevel::kWarning,
          fmt::format("the event queue is full: batches are dropped; {} (max_queue_size, kvwire.queue_bytes)",
                      follows));
    }
    overflowing_ = true;
    overflow_seen_ = dropped;
  } else if (overflowing_ && queue_->Front() == nullptr) {
    overflowing_ = false;
    Log(options_.log, LogLevel::kInfo,
        fmt::format("the event queue is empty again; batches dropped: {}", dropped - overflow_start_));
  }
}

void PublisherAgent::ReportCrowd() {
  const std::uint64_t turned_away = replay_->turned_away();
  const std::uint64_t slow = replay_->slow();
  if (turned_away == turned_away_seen_ && slow == slow_seen_) return;
  if (crowd_reported_ && now_ - *crowd_reported_ < kCrowdPeriod) return;
  Log(options_.log, LogLevel::kWarning,
      fmt::format("too many replay requests at once ({} answered, {} waiting): left without an answer: {}; given up "
                  "as too slow while others waited: {}",
                  ReplayService::kMaxClients, ReplayService::kMaxWaiting, turned_away - turned_away_seen_,
                  slow - slow_seen_));
  turned_away_seen_ = turned_away;
  slow_seen_ = slow;
  crowd_reported_ = now_;
}

PublisherStats PublisherAgent::stats() const noexcept {
  PublisherStats stats = queue_->stats();
  // What ends began before, so the ends are read first. A peer may also end what it never began.
  const std::uint64_t unsubscribed = unsubscribed_.value();
  const std::uint64_t subscribed = subscribed_.value();
  stats.subscriptions = subscribed - std::min(subscribed, unsubscribed);
  stats.bytes_sent = bytes_sent_.value();
  stats.replay_buffered = buffered_.value();
  stats.replay_buffered_bytes = buffered_bytes_.value();
  if (const std::uint64_t oldest = oldest_.value(); oldest != 0) stats.replay_oldest = oldest - 1;
  if (const std::uint64_t newest = newest_.value(); newest != 0) stats.replay_newest = newest - 1;
  stats.encode_nanos = encode_nanos_.value();
  stats.send_nanos = send_nanos_.value();
  stats.resyncs_wanted = requests_.wants().resyncs;
  if (replay_) {
    stats.replay_clients = replay_->client_count();
    stats.hello_requests = replay_->hellos();
    stats.digest_requests = replay_->digests();
    stats.snapshot_requests = replay_->snapshots();
    stats.snapshots_sent = answers_->walks().sent();
    stats.snapshots_failed = answers_->walks().failed();
    stats.snapshot_bytes = answers_->walks().bytes();
    stats.replay_requests = replay_->requests();
    stats.replay_malformed = replay_->malformed();
    stats.replay_dropped = replay_->dropped();
    stats.replay_slow = replay_->slow();
    stats.replay_messages = replay_->messages();
  }
  return stats;
}

std::string PublisherAgent::last_error() const {
  const std::lock_guard<std::mutex> lock(error_mutex_);
  return last_error_;
}

}  // namespace kvwire
