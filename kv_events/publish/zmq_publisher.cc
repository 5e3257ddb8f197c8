// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/zmq_publisher.h"

#include <algorithm>
#include <csignal>
#include <random>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "kv_events/transport/address_probe.h"
#include "kv_events/wire/encoder.h"

namespace kvwire {

namespace {

constexpr std::chrono::microseconds kLookInterval(200);
constexpr std::chrono::microseconds kLongestSleep(50'000);
constexpr std::chrono::milliseconds kShortestLinger(200);
constexpr std::chrono::milliseconds kLongestDeadline(3'600'000);
constexpr MonotonicNanos kLonelyAfter = 5'000'000'000;
// After so long without a failure an episode of refused connections is over.
constexpr MonotonicNanos kAcceptingAfter = 10'000'000'000;

// A replay client's messages beyond this wait in the buffer instead of in libzmq's pipes, where nothing bounds their
// bytes and a client that stopped reading would hold them.
constexpr int kReplaySendHwm = 64;
constexpr int kReplayReceiveHwm = 16;
// Requests are short; a larger frame ends the connection.
constexpr std::int64_t kMaxRequestFrameBytes = 4096;
// So are subscriptions. Taking in long ones costs the publishing thread more time than libzmq takes to bring the next.
constexpr std::int64_t kMaxSubscriptionFrameBytes = 256;
// Besides the topic; with ZMTP 3.1 the name of the command is in the frame.
constexpr std::int64_t kSubscriptionHeadBytes = 16;
// What a client says in CURVE's handshake is longer, with its metadata.
constexpr std::int64_t kCurveHandshakeBytes = 1024;
constexpr std::size_t kReplayMaxFrames = 8;
// Of subscriptions: a consumer of a whole fleet's topics stays below the first.
constexpr PeerLimits kSubscriptionLimits{256 << 10, 4 << 20};
// ZeroMQ takes in what a peer sends for as long as its thread brings more. Where that thread waits after each message,
// the publishing thread is the faster one, and goes on with its batches.
constexpr int kSubscriptionReceiveHwm = 1;
constexpr MonotonicNanos kCutPeriod = 60'000'000'000;

std::uint64_t RandomEpoch() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

PublisherAgent::Options AgentOptions(const KVEventsConfig& config, const PublisherOptions& options,
                                     PublisherAgent::EncodeFunction encode) {
  PublisherAgent::Options agent;
  agent.topic = config.topic;
  agent.replay_layout = config.kvwire.replay_layout;
  agent.buffer_steps = static_cast<std::size_t>(config.buffer_steps);
  agent.buffer_bytes = static_cast<std::size_t>(config.kvwire.buffer_bytes);
  agent.data_parallel_rank = options.data_parallel_rank;
  agent.epoch = RandomEpoch();
  agent.removals = config.kvwire.removals;
  agent.overflow = config.kvwire.overflow;
  agent.heartbeat_interval_ms = config.kvwire.heartbeat_interval_ms;
  agent.restart_guard_s = config.kvwire.restart_guard_s;
  agent.snapshot = config.kvwire.snapshot;
  agent.on_state_wanted = options.on_state_wanted;
  agent.clock = options.clock;
  agent.log = options.log;
  agent.encode = std::move(encode);
  if (!agent.encode) {
    agent.encode = [encoder = BatchEncoder(config.kvwire)](const KVEventBatch& batch, std::vector<std::uint8_t>* out) {
      encoder.Encode(batch, out);
    };
  }
  return agent;
}

PublishQueue::Options QueueOptions(const KVEventsConfig& config, const PublisherOptions& options) {
  PublishQueue::Options queue;
  queue.max_batches = static_cast<std::size_t>(config.max_queue_size);
  queue.max_bytes = static_cast<std::size_t>(config.kvwire.queue_bytes);
  queue.first_number = options.succession ? options.succession->first_number : config.kvwire.first_seq;
  queue.refuse = options.refuse_batch;
  return queue;
}

// A port that the operating system chose once is kept.
Status Succeed(const std::optional<std::string>& earlier, Endpoint* endpoint) {
  if (!earlier || endpoint->scheme != Endpoint::Scheme::kTcp || endpoint->port != 0) return {};
  const Result<Endpoint> resolved = Endpoint::Parse(*earlier, "succession");
  if (!resolved) return tl::unexpected<Error>(resolved.error());
  endpoint->port = resolved->port;
  return {};
}

bool IsWildcard(const std::string& endpoint) {
  return endpoint.starts_with("tcp://0.0.0.0:") || endpoint.starts_with("tcp://[::]:");
}

}  // namespace

Result<ZmqPublisher::Links> ZmqPublisher::OpenLinks(const KVEventsConfig& config, const PublisherOptions& options) {
  Result<RankEndpoints> endpoints = EndpointsForRank(config, options.data_parallel_rank, options.dp_size);
  if (!endpoints) return tl::unexpected<Error>(endpoints.error());
  if (options.succession && options.succession->source) {
    const EventSourceInfo& earlier = *options.succession->source;
    Status kept = Succeed(earlier.endpoint, &endpoints->publish);
    if (kept && endpoints->replay) kept = Succeed(earlier.replay_endpoint, &*endpoints->replay);
    if (!kept) return tl::unexpected<Error>(kept.error());
  }
  const std::shared_ptr<ZmqContext> context = options.context ? options.context : ZmqContext::Shared();

  Links links;
  links.binds = Binds(endpoints->publish, config.kvwire.mode);
  Result<PublisherCurve> curve =
      PublisherCurve::Read(config.kvwire.curve, {links.binds || endpoints->replay, !links.binds}, options.log);
  if (!curve) return tl::unexpected<Error>(curve.error());
  if (curve->server) links.clients = curve->server->clients;
  LinkOptions publishing;
  publishing.send_hwm = static_cast<int>(config.hwm);
  publishing.max_message_bytes =
      std::max(kMaxSubscriptionFrameBytes, static_cast<std::int64_t>(config.topic.size()) + kSubscriptionHeadBytes);
  publishing.receive_hwm = kSubscriptionReceiveHwm;
  publishing.peer_limits = kSubscriptionLimits;
  publishing.watch_peers = true;
  if (links.binds) publishing.curve_server = curve->server;
  if (config.kvwire.curve.enabled()) {
    publishing.max_message_bytes = std::max(publishing.max_message_bytes, kCurveHandshakeBytes);
  }
  publishing.curve_client = curve->client;
  Result<std::unique_ptr<ZmqLink>> publish =
      links.binds ? ZmqLink::Bind(context, LinkKind::kPub, endpoints->publish, publishing)
                  : ZmqLink::Connect(context, LinkKind::kPub, endpoints->publish, publishing);
  if (!publish) return tl::unexpected<Error>(publish.error());
  links.publish = std::move(*publish);
  if (!endpoints->replay) return links;

  LinkOptions replaying;
  replaying.send_hwm = kReplaySendHwm;
  replaying.receive_hwm = kReplayReceiveHwm;
  replaying.max_message_bytes = kMaxRequestFrameBytes;
  replaying.max_frames = kReplayMaxFrames;
  replaying.watch_peers = true;
  replaying.curve_server = curve->server;
  Result<std::unique_ptr<ZmqLink>> replay = ZmqLink::Bind(context, LinkKind::kRouter, *endpoints->replay, replaying);
  if (!replay) return tl::unexpected<Error>(replay.error());
  links.replay = std::move(*replay);
  return links;
}

Result<std::unique_ptr<ZmqPublisher>> ZmqPublisher::Create(const KVEventsConfig& config,
                                                           const PublisherOptions& options,
                                                           PublisherAgent::EncodeFunction encode) {
  Result<Links> links = OpenLinks(config, options);
  if (!links) return tl::unexpected<Error>(links.error());
  std::unique_ptr<ZmqPublisher> publisher(new ZmqPublisher(config, options, std::move(encode), std::move(*links)));
  if (const Status started = publisher->Start(); !started) return tl::unexpected<Error>(started.error());
  return publisher;
}

ZmqPublisher::ZmqPublisher(const KVEventsConfig& config, const PublisherOptions& options,
                           PublisherAgent::EncodeFunction encode, Links links)
    : options_(options),
      rank_(options.data_parallel_rank),
      binds_(links.binds),
      resyncs_(config.kvwire.overflow == Overflow::kResync),
      queue_(QueueOptions(config, options)),
      publish_(std::move(links.publish)),
      replay_(std::move(links.replay)),
      clients_(std::move(links.clients)),
      decorated_(options.decorate_publish ? options.decorate_publish(publish_.get()) : nullptr),
      agent_(AgentOptions(config, options, std::move(encode)), &*queue_,
             *decorated_ ? decorated_->get() : static_cast<FrameLink*>(publish_.get()), replay_.get()),
      watching_peers_(!links.binds) {
  source_.data_parallel_rank = rank_;
  source_.endpoint = binds_ ? ReachableAddress(publish_->endpoint()) : publish_->endpoint();
  if (replay_) source_.replay_endpoint = ReachableAddress(replay_->endpoint());
  source_.topic = config.topic;
  if (clients_) return;
  if (binds_ && IsWildcard(publish_->endpoint())) exposed_ = publish_->endpoint();
  if (replay_ && exposed_.empty() && IsWildcard(replay_->endpoint())) exposed_ = replay_->endpoint();
}

ZmqPublisher::~ZmqPublisher() { Close(); }

Status ZmqPublisher::Start() {
  started_ = options_.clock->Now();
  if (options_.runner != nullptr) {
    options_.runner->Add(this);
  } else if (Status started = StartThread(); !started) {
    return started;
  }
  AnnounceSockets();
  return {};
}

Status ZmqPublisher::StartThread() {
  if (signal_.fd() < 0) {
    return MakeError(ErrorCode::kUnavailable,
                     "cannot open an event descriptor for the publisher: out of file descriptors? (ulimit -n)");
  }
  // The host's signals are not for this thread.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    *thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    status = MakeError(ErrorCode::kUnavailable, fmt::format("cannot start the publisher's thread: {}", error.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

void ZmqPublisher::AnnounceSockets() const {
  Log(options_.log, LogLevel::kInfo,
      fmt::format("data-parallel rank {}: {} the PUB socket {} {}, topic \"{}\"", rank_,
                  binds_ ? "binding" : "connecting", binds_ ? "at" : "to", source_.endpoint, source_.topic));
  if (source_.replay_endpoint) {
    Log(options_.log, LogLevel::kInfo,
        fmt::format("data-parallel rank {}: binding the ROUTER socket for replay at {}", rank_,
                    *source_.replay_endpoint));
  }
  if (exposed_.empty()) return;
  Log(options_.log, LogLevel::kWarning,
      fmt::format("KV events are open to every network interface without authentication ({}): whoever reaches the port "
                  "reads the token ids of all prompts",
                  exposed_));
}

PublishResult ZmqPublisher::Publish(KVEventBatch&& batch) noexcept {
  if (queue_.forked()) {
    batch.Clear();
    return PublishResult::kUsedAfterFork;
  }
  if (!batch.data_parallel_rank) batch.data_parallel_rank = rank_;
  return queue_->Push(&batch);
}

PublishResult ZmqPublisher::PublishChunk(StateChunk&& chunk) noexcept {
  if (queue_.forked()) return PublishResult::kUsedAfterFork;
  if (!chunk.blocks.data_parallel_rank) chunk.blocks.data_parallel_rank = rank_;
  return queue_->PushChunk(&chunk);
}

// Either this exchange comes after the one in Park, sees true and signals, or it comes before, and then Park's exchange
// makes the batch visible to the look that follows it.
void ZmqPublisher::Wake() noexcept {
  if (queue_.forked()) return;
  if (options_.runner != nullptr) {
    options_.runner->Wake();
    return;
  }
  if (parked_.exchange(false, std::memory_order_acq_rel)) signal_.Wake();
}

// Zero when it has passed.
std::chrono::microseconds ZmqPublisher::TimeUntil(MonotonicNanos time) const {
  const MonotonicNanos now = options_.clock->Now();
  if (time <= now) return std::chrono::microseconds(0);
  return std::chrono::ceil<std::chrono::microseconds>(std::chrono::nanoseconds(time - now));
}

void ZmqPublisher::Park() noexcept {
  parked_.exchange(true, std::memory_order_acq_rel);
  if (queue_->Front() == nullptr) {
    ZmqLink* const links[] = {publish_.get(), replay_.get()};
    const std::chrono::microseconds longest = options_.host_wakes ? kLongestSleep : kLookInterval;
    WaitForInput(links, &signal_, std::min(longest, TimeUntil(due())));
  }
  parked_.exchange(false, std::memory_order_acq_rel);
}

void ZmqPublisher::WarnIfAlone(MonotonicNanos now) {
  if (!watching_peers_) return;
  if (publish_->peers().connected > 0) {
    watching_peers_ = false;
  } else if (now - started_ >= kLonelyAfter) {
    watching_peers_ = false;
    WarnOfNobody();
  }
}

void ZmqPublisher::WarnOfNobody() const {
  Log(options_.log, LogLevel::kWarning,
      fmt::format("nobody listens at {}, which the PUB socket connects to; events are lost until somebody does",
                  source_.endpoint));
}

// Without a descriptor libzmq tries again and again, and tells nobody else.
void ZmqPublisher::WarnIfRefusing(MonotonicNanos now) {
  const std::uint64_t failed = publish_->peers().accept_failed + (replay_ ? replay_->peers().accept_failed : 0);
  if (failed != accept_failed_) {
    accept_failed_ = failed;
    last_accept_failure_ = now;
    if (std::exchange(refusing_, true)) return;
    Log(options_.log, LogLevel::kWarning,
        "cannot accept connections: out of file descriptors? (ulimit -n); who is connected already is served on");
  } else if (refusing_ && now - last_accept_failure_ >= kAcceptingAfter) {
    refusing_ = false;
    Log(options_.log, LogLevel::kInfo, "accepting connections again");
  }
}

void ZmqPublisher::NoteCut(MonotonicNanos now) {
  const std::uint64_t cut = publish_->cut_off();
  if (cut == cut_.value() && cut == cut_reported_) return;
  cut_.Set(cut);
  if (cut_reported_ > 0 && now - cut_report_ < kCutPeriod) return;
  Log(options_.log, LogLevel::kWarning,
      fmt::format("subscribers were disconnected, as what they subscribe to is above {} bytes each or {} together: {}",
                  kSubscriptionLimits.peer_bytes, kSubscriptionLimits.total_bytes, cut - cut_reported_));
  cut_reported_ = cut;
  cut_report_ = now;
}

// Who is turned away by the list is told of by the list; these did not get so far.
void ZmqPublisher::NoteStrangers() {
  if (!clients_) return;
  const std::uint64_t failed = publish_->peers().failed + (replay_ ? replay_->peers().failed : 0);
  if (failed == strangers_.value()) return;
  strangers_.Set(failed);
  if (strangers_reported_) return;
  strangers_reported_ = true;
  Log(options_.log, LogLevel::kWarning,
      "a connection was refused that does not speak CURVE, or believes in another public key than this publisher's; "
      "further ones are counted only");
}

PublisherStats ZmqPublisher::stats() const noexcept {
  PublisherStats stats = agent_->stats();
  stats.subscribers_cut = cut_.value();
  if (clients_) {
    stats.clients_admitted = clients_->admitted();
    stats.clients_denied = clients_->denied();
    stats.handshakes_failed = strangers_.value();
  }
  return stats;
}

void ZmqPublisher::Run() noexcept {
  pthread_setname_np(pthread_self(), "kvwire-publish");
  while (!closed_.load(std::memory_order_relaxed)) {
    if (DoWork(options_.clock->Now()) == 0) Park();
  }
}

std::size_t ZmqPublisher::DoWork(MonotonicNanos now) noexcept {
  if (closed_.load(std::memory_order_relaxed)) return 0;
  if (!stopping_.load(std::memory_order_acquire)) {
    const std::size_t work = agent_->DoWork(now);
    WarnIfAlone(now);
    WarnIfRefusing(now);
    NoteCut(now);
    NoteStrangers();
    return work;
  }
  if (queue_->Front() != nullptr && std::chrono::steady_clock::now() < deadline_) {
    agent_->PublishQueued();
    return 1;
  }
  CloseLinks();
  closed_.store(true, std::memory_order_release);
  closed_.notify_all();
  return 1;
}

void ZmqPublisher::AppendLinks(std::vector<ZmqLink*>* links) const {
  if (publish_) links->push_back(publish_.get());
  if (replay_) links->push_back(replay_.get());
}

bool ZmqPublisher::HasWork() noexcept {
  return queue_->Front() != nullptr ||
         (stopping_.load(std::memory_order_acquire) && !closed_.load(std::memory_order_relaxed));
}

void ZmqPublisher::CloseLinks() noexcept {
  if (const std::uint64_t left = queue_->stats().queued; left > 0) {
    Log(options_.log, LogLevel::kWarning, fmt::format("closed before everything was sent; batches dropped: {}", left));
  }
  queue_->DropAll();
  // ZeroMQ takes what a socket sends that never had a peer, and drops it.
  if (watching_peers_ && publish_->peers().connected == 0 && queue_->stats().sent > 0) WarnOfNobody();
  replay_.reset();
  decorated_->reset();
  const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
  publish_->SetLinger(std::max(kShortestLinger, rest));
  publish_.reset();
}

void ZmqPublisher::Close(std::chrono::milliseconds deadline) noexcept {
  if (queue_.forked() || closing_.exchange(true)) return;
  queue_->Close();
  deadline = std::clamp(deadline, std::chrono::milliseconds(0), kLongestDeadline);
  deadline_ = std::chrono::steady_clock::now() + deadline;
  stopping_.store(true, std::memory_order_release);
  if (options_.runner != nullptr) {
    options_.runner->Wake();
    closed_.wait(false, std::memory_order_acquire);
    options_.runner->Remove(this);
  } else {
    signal_.Wake();
    if (thread_->joinable()) thread_->join();
  }
  // Nothing, unless a Publish ran into this call.
  queue_->DropAll();
}

}  // namespace kvwire
