// SPDX-License-Identifier: Apache-2.0
#include "tests/support/stream_support.h"

#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <variant>

#include "kv_events/wire/decoder.h"
#include "kv_events/wire/encoder.h"

namespace kvwire::test {

namespace {

constexpr std::chrono::seconds kPatience(5);

std::vector<FrameView> Views(const InFrames& frames) { return {frames.begin(), frames.end()}; }

std::string Text(FrameView frame) { return {frame.begin(), frame.end()}; }

std::unique_ptr<ZmqLink> MustBind(const std::shared_ptr<ZmqContext>& context, LinkKind kind, const std::string& text,
                                  const LinkOptions& options) {
  Result<std::unique_ptr<ZmqLink>> link = ZmqLink::Bind(context, kind, *Endpoint::Parse(text, "endpoint"), options);
  if (!link) throw std::runtime_error(link.error().message);
  return std::move(*link);
}

PublisherAgent::Options AgentOptions(const AgentSettings& settings) {
  PublisherAgent::Options options;
  options.topic = settings.topic;
  options.replay_layout = settings.layout;
  options.buffer_steps = settings.buffer_steps;
  options.buffer_bytes = settings.buffer_bytes;
  options.max_payload_bytes = settings.max_payload_bytes;
  options.log = settings.log;
  options.encode = settings.encode;
  if (!options.encode) {
    options.encode = [encoder = BatchEncoder({})](const KVEventBatch& batch, std::vector<std::uint8_t>* out) {
      encoder.Encode(batch, out);
    };
  }
  if (settings.adjust) settings.adjust(&options);
  return options;
}

PublishQueue::Options QueueOptions(const AgentSettings& settings) {
  PublishQueue::Options options;
  options.max_batches = settings.max_batches;
  options.first_number = settings.first_number;
  return options;
}

template <class Message>
std::vector<SequenceNumber> NumbersOf(const std::vector<Message>& messages) {
  std::vector<SequenceNumber> numbers;
  for (const Message& message : messages) numbers.push_back(message.number);
  return numbers;
}

}  // namespace

KVEventBatch StoreBatch(std::size_t events, std::uint64_t base) {
  KVEventBatch batch;
  batch.ts = 1700000000.5;
  const TokenId tokens[] = {1, 2, 3, 4};
  for (std::size_t i = 0; i < events; ++i) {
    const BlockHash hash = BlockHash::FromUint64(base + i + 1);
    BlockStored stored;
    stored.block_hashes = {&hash, 1};
    stored.token_ids = tokens;
    stored.block_size = 4;
    stored.medium = kMediumGpu;
    batch.Add(stored);
  }
  return batch;
}

std::vector<std::uint64_t> StoredHashes(std::span<const std::uint8_t> payload) {
  std::vector<std::uint64_t> hashes;
  const auto decoded = DecodeBatch(payload);
  if (!decoded) return hashes;
  for (std::size_t i = 0; i < decoded->batch.size(); ++i) {
    const KVEventBatch::Event event = decoded->batch.at(i);
    const auto* stored = std::get_if<BlockStored>(&event);
    if (stored == nullptr) continue;
    for (const BlockHash& hash : stored->block_hashes) hashes.push_back(hash.Low64());
  }
  return hashes;
}

void ApplyEvents(std::span<const std::uint8_t> payload, std::set<std::uint64_t>* held) {
  const auto decoded = DecodeBatch(payload);
  if (!decoded) throw std::runtime_error(decoded.error().message);
  if (decoded->rejected_total > 0) throw std::runtime_error(decoded->rejected[0].error.message);
  for (std::size_t i = 0; i < decoded->batch.size(); ++i) {
    const KVEventBatch::Event event = decoded->batch.at(i);
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      for (const BlockHash& hash : stored->block_hashes) held->insert(hash.Low64());
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      for (const BlockHash& hash : removed->block_hashes) held->erase(hash.Low64());
    } else {
      held->clear();
    }
  }
}

std::optional<std::int64_t> RankOf(std::span<const std::uint8_t> payload) {
  const auto decoded = DecodeBatch(payload);
  return decoded ? decoded->batch.data_parallel_rank : std::nullopt;
}

std::optional<Live> ReceiveLive(FrameLink* link) {
  const std::optional<InFrames> frames = link->TryReceive();
  if (!frames) return std::nullopt;
  const std::vector<FrameView> views = Views(*frames);
  const std::optional<LiveMessage> message = ParseLiveMessage(views);
  if (!message) return std::nullopt;
  return Live{Text(message->topic), message->sequence, {message->payload.begin(), message->payload.end()}};
}

std::optional<Replayed> ReceiveReplayed(FrameLink* link) {
  const std::optional<InFrames> frames = link->TryReceive();
  if (!frames) return std::nullopt;
  const std::vector<FrameView> views = Views(*frames);
  const std::optional<ReplayMessage> message = ParseReplayMessage(views);
  if (!message) return std::nullopt;
  Replayed replayed;
  if (message->topic) replayed.topic = Text(*message->topic);
  replayed.number = message->sequence;
  replayed.payload.assign(message->payload.begin(), message->payload.end());
  replayed.end = message->end;
  replayed.frames = frames->size();
  return replayed;
}

SendResult SendFrames(FrameLink* link, const std::vector<std::vector<std::uint8_t>>& frames) {
  std::vector<OutFrame> out;
  for (const auto& frame : frames) out.push_back(OutFrame::Copy(frame));
  return link->TrySend(out);
}

SendResult Ask(FrameLink* link, SequenceNumber start) {
  const SequenceFrame number = EncodeSequence(start);
  return SendFrames(link, {{}, {number.begin(), number.end()}});
}

SendResult Ask(FrameLink* link, const ExtensionRequest& request) {
  return SendFrames(link, {{}, EncodeExtensionRequest(request)});
}

std::optional<Told> ReceiveTold(FrameLink* link) {
  const std::optional<InFrames> frames = link->TryReceive();
  if (!frames) return std::nullopt;
  const std::vector<FrameView> views = Views(*frames);
  if (const std::optional<ExtensionMessage> message = ParseExtensionMessage(views)) {
    return Told{std::string(message->name), message->number, {message->payload.begin(), message->payload.end()}, false};
  }
  const std::optional<ReplayMessage> replayed = ParseReplayMessage(views);
  if (!replayed) return std::nullopt;
  return Told{{}, replayed->sequence, {replayed->payload.begin(), replayed->payload.end()}, replayed->end};
}

bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

std::vector<SequenceNumber> Numbers(const std::vector<Replayed>& messages) {
  std::vector<SequenceNumber> numbers = NumbersOf(messages);
  if (!messages.empty() && messages.back().end) numbers.pop_back();
  return numbers;
}

std::vector<SequenceNumber> Numbers(const std::vector<Live>& messages) { return NumbersOf(messages); }

std::vector<SequenceNumber> Range(SequenceNumber first, SequenceNumber last) {
  std::vector<SequenceNumber> numbers;
  for (SequenceNumber number = first; number <= last; ++number) numbers.push_back(number);
  return numbers;
}

bool Balanced(const PublisherStats& stats, std::uint64_t submitted) {
  return stats.submitted == submitted &&
         submitted == stats.sent + stats.dropped_full + stats.dropped_error + stats.dropped_closed + stats.queued;
}

std::unique_ptr<FrameLink> MemoryRig::Subscribe(const std::string& prefix, int receive_hwm) {
  return publish_.Subscribe(prefix, static_cast<std::size_t>(receive_hwm));
}

std::unique_ptr<FrameLink> MemoryRig::Dealer(const std::string& identity, int receive_hwm) {
  return router_.Connect(identity, static_cast<std::size_t>(receive_hwm));
}

ZmqRig::ZmqRig()
    : publish_(MustBind(context_, LinkKind::kPub, "inproc://publish", {})),
      router_(MustBind(context_, LinkKind::kRouter, "inproc://replay", {})) {}

std::unique_ptr<FrameLink> ZmqRig::Subscribe(const std::string& prefix, int receive_hwm) {
  LinkOptions options;
  options.subscription = prefix;
  options.receive_hwm = receive_hwm;
  std::unique_ptr<FrameLink> link = ConnectTo(context_, LinkKind::kSub, "inproc://publish", options);
  // Over inproc the subscription has arrived already; looking makes the publishing socket act on it.
  ZmqLink* const links[] = {publish_.get()};
  WaitForInput(links, nullptr, std::chrono::microseconds(0));
  return link;
}

std::unique_ptr<FrameLink> ZmqRig::Dealer(const std::string& identity, int receive_hwm) {
  LinkOptions options;
  options.identity = identity;
  options.receive_hwm = receive_hwm;
  return ConnectTo(context_, LinkKind::kDealer, "inproc://replay", options);
}

DrivenPublisher::DrivenPublisher(const AgentSettings& settings, FrameLink* publish, FrameLink* replay)
    : queue(QueueOptions(settings)), agent(AgentOptions(settings), &queue, publish, replay) {}

PublishResult DrivenPublisher::Publish(KVEventBatch batch) {
  ++submitted;
  return queue.Push(&batch);
}

void DrivenPublisher::PublishMany(std::size_t batches) {
  for (std::size_t i = 0; i < batches; ++i) {
    static_cast<void>(Publish(StoreBatch(1, submitted)));
    agent.DoWork(now);
  }
}

void DrivenPublisher::Drain() {
  while (agent.DoWork(now) > 0) {
  }
}

std::vector<Replayed> DrivenPublisher::Replay(FrameLink* dealer, SequenceNumber start) {
  Ask(dealer, start);
  return ReadReplay(dealer);
}

std::vector<Replayed> DrivenPublisher::ReadReplay(FrameLink* dealer) {
  std::vector<Replayed> messages;
  Eventually([&] {
    Turn();
    while (std::optional<Replayed> message = ReceiveReplayed(dealer)) {
      messages.push_back(std::move(*message));
      if (messages.back().end) return true;
    }
    return false;
  });
  return messages;
}

std::vector<Live> DrivenPublisher::ReadLive(FrameLink* subscriber, std::size_t count) {
  std::vector<Live> messages;
  Eventually([&] {
    Turn();
    while (std::optional<Live> message = ReceiveLive(subscriber)) messages.push_back(std::move(*message));
    return messages.size() >= count;
  });
  return messages;
}

std::unique_ptr<ZmqLink> ConnectTo(const std::shared_ptr<ZmqContext>& context, LinkKind kind,
                                   const std::string& endpoint, const LinkOptions& options) {
  Result<std::unique_ptr<ZmqLink>> link =
      ZmqLink::Connect(context, kind, *Endpoint::Parse(endpoint, "endpoint"), options);
  if (!link) throw std::runtime_error(link.error().message);
  return std::move(*link);
}

SequenceNumber Join(EventPublisher* publisher, FrameLink* subscriber, SequenceNumber next) {
  // Probes repeat until one is heard; then the last of them is waited for.
  std::optional<SequenceNumber> heard;
  Eventually([&] {
    static_cast<void>(publisher->Publish(KVEventBatch()));
    publisher->Wake();
    ++next;
    while (publisher->stats().queued > 0) std::this_thread::yield();
    if (const std::optional<Live> live = ReceiveLive(subscriber)) heard = live->number;
    return heard.has_value();
  });
  Eventually([&] {
    while (const std::optional<Live> live = ReceiveLive(subscriber)) heard = live->number;
    return heard == next - 1;
  });
  return next;
}

std::vector<Live> ReadLive(FrameLink* subscriber, std::size_t count) {
  std::vector<Live> messages;
  Eventually([&] {
    while (std::optional<Live> message = ReceiveLive(subscriber)) messages.push_back(std::move(*message));
    return messages.size() >= count;
  });
  return messages;
}

std::vector<Replayed> ReadReplay(FrameLink* dealer) {
  std::vector<Replayed> messages;
  Eventually([&] {
    while (std::optional<Replayed> message = ReceiveReplayed(dealer)) {
      messages.push_back(std::move(*message));
      if (messages.back().end) return true;
    }
    return false;
  });
  return messages;
}

struct LogCapture::State {
  std::mutex mutex;
  std::vector<std::pair<LogLevel, std::string>> lines;
};

std::shared_ptr<LogCapture::State> LogCapture::MakeState() { return std::make_shared<State>(); }

LogSink LogCapture::sink() {
  return [state = state_](LogLevel level, std::string_view text) {
    const std::lock_guard<std::mutex> lock(state->mutex);
    state->lines.emplace_back(level, text);
  };
}

std::size_t LogCapture::Count(LogLevel level, std::string_view part) const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  std::size_t count = 0;
  for (const auto& [line_level, text] : state_->lines) {
    if (line_level == level && text.find(part) != std::string::npos) ++count;
  }
  return count;
}

}  // namespace kvwire::test
