// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/search_model.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "kv_events/subscribe/mirror.h"
#include "kv_events/wire/encoder.h"
#include "kv_events/wire/extensions.h"

namespace kvwire::test {

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr MonotonicNanos kMillisecond = 1'000'000;
constexpr MonotonicNanos kLongestRest = 5'000'000'000;
constexpr std::size_t kFew = 2;

enum class Content : std::uint8_t { kStore, kStoreAndRemove, kClear, kEmpty };

// A block of the batch with this number; no two lives share one.
std::uint64_t BlockOf(std::uint64_t life, SequenceNumber number) { return 1 + (life << 32) + number; }

void AddStore(std::uint64_t low64, KVEventBatch* batch) {
  static constexpr TokenId kTokens[] = {1, 2, 3, 4};
  const BlockHash hash = BlockHash::FromUint64(low64);
  BlockStored stored;
  stored.block_hashes = {&hash, 1};
  stored.token_ids = kTokens;
  stored.block_size = 4;
  stored.medium = kMediumGpu;
  batch->Add(stored);
}

void AddRemoval(std::uint64_t low64, KVEventBatch* batch) {
  const BlockHash hash = BlockHash::FromUint64(low64);
  BlockRemoved removed;
  removed.block_hashes = {&hash, 1};
  removed.medium = kMediumGpu;
  batch->Add(removed);
}

const Bytes& PayloadOf(std::uint64_t life, SequenceNumber number, Content content) {
  static std::map<std::array<std::uint64_t, 3>, Bytes> made;
  Bytes& payload = made[{life, number, static_cast<std::uint64_t>(content)}];
  if (!payload.empty()) return payload;
  KVEventBatch batch;
  // As clocks have it: no two batches have the same time.
  batch.ts = 1'700'000'000.0 + 1000.0 * static_cast<double>(life) + static_cast<double>(number);
  batch.data_parallel_rank = 0;
  if (content == Content::kClear) batch.Add(AllBlocksCleared{});
  if (content == Content::kStore || content == Content::kStoreAndRemove) AddStore(BlockOf(life, number), &batch);
  if (content == Content::kStoreAndRemove) AddRemoval(BlockOf(life, number - 1), &batch);
  static const BatchEncoder encoder{KVEventsConfig::Extensions()};
  encoder.Encode(batch, &payload);
  return payload;
}

Bytes NumberFrame(SequenceNumber number) {
  const SequenceFrame frame = EncodeSequence(number);
  return Bytes(frame.begin(), frame.end());
}

// Everything that is on its way to one socket.
struct Inbox {
  std::deque<InFrames> messages;
  PeerCounts peers;
};

class InboxLink : public FrameLink {
 public:
  explicit InboxLink(Inbox* inbox) : inbox_(inbox) {}
  SendResult TrySend(std::span<const OutFrame>) noexcept override { return SendResult::kSent; }
  std::optional<InFrames> TryReceive() override {
    if (inbox_->messages.empty()) return std::nullopt;
    InFrames frames = std::move(inbox_->messages.front());
    inbox_->messages.pop_front();
    return frames;
  }
  PeerCounts peers() noexcept override { return inbox_->peers; }
  std::string endpoint() const override { return "model"; }

 private:
  Inbox* const inbox_;
};

class ModelPublisher {
 public:
  // Only one that speaks hello answers more than starts of replays.
  ModelPublisher(Inbox* live, const SearchOptions& options)
      : live_(live),
        speaks_hello_(options.mode == Mode::kReplayHello),
        kept_(options.room == Room::kScarce ? kFew : kEndOfReplay) {}

  // Draws a number; the batch is in the replay from now on.
  const Bytes& Publish(bool clear = false) {
    Content content = Content::kStore;
    if (clear) {
      content = Content::kClear;
      digest_.Clear();
      held_.clear();
    } else {
      Hold(BlockOf(life_, next_));
      // Every third batch takes back what the one before announced, if that is still held.
      if (next_ % 3 == 2 && Release(BlockOf(life_, next_ - 1))) content = Content::kStoreAndRemove;
    }
    return Number(content);
  }
  const Bytes& PublishHeartbeat() { return Number(Content::kEmpty); }

  void Deliver(const Bytes& payload) { DeliverAs(next_ - 1, payload); }
  void DeliverAs(SequenceNumber number, const Bytes& payload) {
    live_->messages.push_back({{'k', 'v'}, NumberFrame(number), payload});
  }

  void Restart() {
    ++life_;
    next_ = 0;
    replay_.clear();
    digests_.clear();
    digest_.Clear();
    held_.clear();
  }

  void Answer(std::span<const OutFrame> request, Inbox* asker) const {
    const FrameView start = request.back().bytes;
    const auto extension = speaks_hello_ ? ParseExtensionRequest(start) : std::nullopt;
    if (extension) AnswerExtension(*extension, asker);
    // Anything else is a number above every batch's.
    const SequenceNumber from = start.size() == 8 ? DecodeSequence(start).value_or(0) : kEndOfReplay;
    for (SequenceNumber number = std::max(from, oldest()); number < replay_.size(); ++number) {
      asker->messages.push_back({{}, {'k', 'v'}, NumberFrame(number), *replay_[number]});
    }
    asker->messages.push_back({{}, {}, NumberFrame(kEndOfReplay), {}});
  }

  SequenceNumber next() const noexcept { return next_; }
  const StateDigest& digest() const noexcept { return digest_; }

 private:
  const Bytes& Number(Content content) {
    const Bytes& payload = PayloadOf(life_, next_++, content);
    replay_.push_back(&payload);
    digests_.push_back(digest_.entries());
    return payload;
  }
  // In the replay.
  SequenceNumber oldest() const { return replay_.size() > kept_ ? replay_.size() - kept_ : 0; }
  void Hold(std::uint64_t block) {
    held_.push_back(block);
    digest_.Add(0, "GPU", block);
  }
  bool Release(std::uint64_t block) {
    if (std::erase(held_, block) == 0) return false;
    digest_.Remove(0, "GPU", block);
    return true;
  }

  void AnswerExtension(const ExtensionRequest& request, Inbox* asker) const {
    const auto send = [asker](std::string_view name, SequenceNumber number, Bytes payload) {
      asker->messages.push_back({{}, Bytes(name.begin(), name.end()), NumberFrame(number), std::move(payload)});
    };
    Bytes payload;
    switch (request.kind) {
      case ExtensionKind::kHello: {
        Hello hello;
        hello.epoch = 77 + life_;
        hello.next = next_;
        if (!replay_.empty()) hello.oldest = oldest();
        hello.heartbeat_interval_ms = 1000;
        hello.snapshots = true;
        hello.digest = digest_.entries();
        EncodeHello(hello, &payload);
        send(kHelloName, next_, std::move(payload));
        return;
      }
      case ExtensionKind::kDigest:
        if (request.number >= digests_.size()) return;
        EncodeDigest(digests_[request.number], &payload);
        send(kDigestName, request.number, std::move(payload));
        return;
      case ExtensionKind::kSnapshot: {
        KVEventBatch blocks;
        for (const std::uint64_t block : held_) AddStore(block, &blocks);
        BatchEncoder(KVEventsConfig::Extensions()).Encode(blocks, &payload);
        send(kChunkName, next_, std::exchange(payload, {}));
        EncodeDigest(digest_.entries(), &payload);
        send(kSnapshotEndName, next_, std::move(payload));
        return;
      }
    }
  }

  Inbox* const live_;
  const bool speaks_hello_;
  const std::uint64_t kept_;  // batches for replay
  std::uint64_t life_ = 0;
  SequenceNumber next_ = 0;
  std::vector<const Bytes*> replay_;  // by number
  std::vector<DigestEntries> digests_;
  StateDigest digest_;
  std::vector<std::uint64_t> held_;
};

// A DEALER's view of the publisher's ROUTER, which answers at once.
class RouterLink final : public InboxLink {
 public:
  explicit RouterLink(const ModelPublisher* publisher) : InboxLink(&inbox_), publisher_(publisher) {}
  SendResult TrySend(std::span<const OutFrame> frames) noexcept override {
    publisher_->Answer(frames, &inbox_);
    return SendResult::kSent;
  }

 private:
  const ModelPublisher* const publisher_;
  Inbox inbox_;
};

class Search {
 public:
  explicit Search(const SearchOptions& options) : options_(options), publisher_(&live_, options) {
    ReplayLinkFactory replay;
    if (options.mode != Mode::kNoReplay) {
      replay = [this] { return std::make_unique<RouterLink>(&publisher_); };
    }
    EventStreamOptions stream;
    if (options.room == Room::kScarce) stream.max_waiting_messages = kFew;
    stream_.emplace(std::make_unique<InboxLink>(&live_), std::move(replay), stream, &consumer_);
    Connect();
    Settle();
  }

  SearchResult Run(std::span<const Step> steps) {
    for (const Step step : steps) {
      Take(step);
      Pause();
    }
    DeliverDelayed();
    Settle();
    WaitOutRest();
    if (options_.ending == Ending::kHeartbeat) publisher_.Deliver(publisher_.PublishHeartbeat());
    Settle();
    return {stream_->status(), consumer_.digest() == publisher_.digest()};
  }

 private:
  void Take(Step step) {
    switch (step) {
      case Step::kDeliver:
        publisher_.Deliver(publisher_.Publish());
        return;
      case Step::kDrop:
        publisher_.Publish();
        return;
      case Step::kDuplicate: {
        const Bytes& payload = publisher_.Publish();
        publisher_.Deliver(payload);
        publisher_.Deliver(payload);
        return;
      }
      case Step::kDelay: {
        const Bytes& payload = publisher_.Publish();
        delayed_.emplace_back(publisher_.next() - 1, &payload);
        return;
      }
      case Step::kUndecodable:
        publisher_.Publish();
        publisher_.Deliver({0xc1});
        return;
      case Step::kClear:
        publisher_.Deliver(publisher_.Publish(true));
        return;
      case Step::kRestartAtZero:
        Restart(0);
        return;
      case Step::kRestartPast:
        Restart(publisher_.next());
        return;
    }
  }

  // The consumer hears nothing of the next life's first `missed` batches.
  void Restart(SequenceNumber missed) {
    DeliverDelayed();
    if (options_.peers == Peers::kWatched) ++live_.peers.disconnected;
    Pause();
    publisher_.Restart();
    while (publisher_.next() < missed) publisher_.Publish();
    Connect();
    publisher_.Deliver(publisher_.Publish());
  }

  void Connect() {
    if (options_.peers == Peers::kWatched) ++live_.peers.connected;
  }

  void DeliverDelayed() {
    for (const auto& [number, payload] : delayed_) publisher_.DeliverAs(number, *payload);
    delayed_.clear();
  }

  // Between two things that happen.
  void Pause() {
    if (options_.pace == Pace::kEachStep) Settle();
  }

  // A stream whose publisher began anew many times at once asks after a pause, in which there are heartbeats; what it
  // learns then may be another beginning.
  void WaitOutRest() {
    for (int i = 0; i < 3 && stream_->status().reason.find("again and again") != std::string_view::npos; ++i) {
      now_ += kLongestRest;
      publisher_.Deliver(publisher_.PublishHeartbeat());
      Settle();
    }
  }

  void Settle() {
    while (stream_->DoWork(now_ += kMillisecond) > 0) {
    }
  }

  const SearchOptions options_;
  Inbox live_;
  ModelPublisher publisher_;
  Mirror consumer_{Removals::kExact};
  std::optional<EventStream> stream_;
  MonotonicNanos now_ = 0;
  std::vector<std::pair<SequenceNumber, const Bytes*>> delayed_;
};

}  // namespace

std::string_view ToString(Step step) noexcept {
  static constexpr std::array<std::string_view, kNumSteps> kNames = {
      "deliver", "drop", "duplicate", "delay", "undecodable", "clear", "restart-at-zero", "restart-past"};
  return kNames[static_cast<std::size_t>(step)];
}

std::string ToString(std::span<const Step> steps) {
  std::string text;
  for (const Step step : steps) text += (text.empty() ? "" : ", ") + std::string(ToString(step));
  return text;
}

std::string_view ToString(Mode mode) noexcept {
  static constexpr std::array<std::string_view, 3> kNames = {"no replay", "replay", "replay and hello"};
  return kNames[static_cast<std::size_t>(mode)];
}

std::string_view ToString(Pace pace) noexcept { return pace == Pace::kEachStep ? "step by step" : "all at once"; }

std::string_view ToString(Room room) noexcept { return room == Room::kAmple ? "ample room" : "scarce room"; }

SearchResult Run(const SearchOptions& options, std::span<const Step> steps) { return Search(options).Run(steps); }

}  // namespace kvwire::test
