// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/watched_stream.h"

#include <chrono>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "kv_events/escape_text.h"

namespace kvwire {

namespace {

constexpr std::chrono::milliseconds kReconnectMax(2000);

LinkOptions WatchingLink(const EventStreamOptions& stream) {
  LinkOptions link;
  link.max_message_bytes = static_cast<std::int64_t>(stream.decode.limits.max_payload_bytes);
  link.watch_peers = true;
  link.reconnect_max = kReconnectMax;
  link.heartbeat = kSubscriberHeartbeat;
  return link;
}

}  // namespace

LinkOptions WatchedStream::Options::Link() const {
  LinkOptions link = WatchingLink(stream);
  link.receive_hwm = receive_hwm;
  link.heartbeat = heartbeat;
  link.subscription = stream.topic;
  link.curve_client = curve;
  return link;
}

LiveLinkFactory LiveLinksTo(std::shared_ptr<ZmqContext> context, std::shared_ptr<EndpointLookup> address,
                            const LinkOptions& link, std::unique_ptr<ZmqLink> first) {
  // A factory is copied.
  const auto made = std::make_shared<std::unique_ptr<ZmqLink>>(std::move(first));
  return [context = std::move(context), address = std::move(address), link, made]() -> std::unique_ptr<FrameLink> {
    if (*made) return std::move(*made);
    const std::optional<Endpoint> endpoint = address->Poll();
    if (!endpoint) return nullptr;
    auto live = ZmqLink::Connect(context, LinkKind::kSub, *endpoint, link);
    if (!live) return nullptr;
    return *std::move(live);
  };
}

ReplayLinkFactory ReplayLinksTo(std::shared_ptr<ZmqContext> context, std::shared_ptr<EndpointLookup> address,
                                std::shared_ptr<const CurveClient> curve) {
  return [context = std::move(context), address = std::move(address),
          curve = std::move(curve)]() -> std::unique_ptr<FrameLink> {
    const std::optional<Endpoint> endpoint = address->Poll();
    if (!endpoint) return nullptr;
    LinkOptions link = WatchingLink(EventStreamOptions());
    // Publishers that do not pace a replay lose what does not fit here.
    link.receive_hwm = 100'000;
    link.curve_client = curve;
    auto dealer = ZmqLink::Connect(context, LinkKind::kDealer, *endpoint, link);
    if (!dealer) return nullptr;
    return *std::move(dealer);
  };
}

WatchedStream::WatchedStream(StreamAddress address, Options options, std::unique_ptr<CheckedSink> sink)
    : options_(std::move(options)), sink_(std::move(sink)), board_(std::move(address)) {}

Result<std::unique_ptr<WatchedStream>> WatchedStream::Create(const std::shared_ptr<ZmqContext>& context,
                                                             StreamAddress address, Options options,
                                                             std::unique_ptr<CheckedSink> sink) {
  options.stream.topic = address.topic;
  std::unique_ptr<WatchedStream> watched(new WatchedStream(std::move(address), std::move(options), std::move(sink)));
  const LinkOptions link = watched->options_.Link();
  watched->live_address_ = std::make_shared<EndpointLookup>(watched->address().endpoint);
  std::unique_ptr<ZmqLink> first;
  if (!watched->live_address_->by_name()) {
    auto live = ZmqLink::Connect(context, LinkKind::kSub, watched->address().endpoint, link);
    if (!live) return tl::unexpected<Error>(live.error());
    first = *std::move(live);
  }
  ReplayLinkFactory replay;
  if (watched->address().replay_endpoint) {
    watched->replay_address_ = std::make_shared<EndpointLookup>(*watched->address().replay_endpoint);
    replay = ReplayLinksTo(context, watched->replay_address_, watched->options_.curve);
  }
  EventStreamOptions stream = watched->options_.stream;
  // A socket stays with the address that a name had, and with the refusal of a key.
  if (watched->live_address_->by_name() || watched->options_.curve) stream.connect_patience = kNamePatience;
  watched->stream_ = std::make_unique<EventStream>(LiveLinksTo(context, watched->live_address_, link, std::move(first)),
                                                   std::move(replay), stream, watched->sink_.get());
  return watched;
}

int WatchedStream::DoWork(MonotonicNanos now) {
  const int work = stream_->DoWork(now);
  board_.Look(*stream_, sink_->checker(), now);
  NoteState(now);
  NoteLookups();
  NoteRank();
  return work;
}

void WatchedStream::AppendLinks(std::vector<ZmqLink*>* links) const {
  for (FrameLink* const link : stream_->links()) {
    if (link != nullptr) links->push_back(static_cast<ZmqLink*>(link));
  }
}

void WatchedStream::Confirm(MonotonicNanos now) {
  stream_->Confirm();
  board_.Refresh(*stream_, sink_->checker(), now);
}

void WatchedStream::Finish(MonotonicNanos now) {
  stream_->Finish();
  board_.Refresh(*stream_, sink_->checker(), now);
}

void WatchedStream::Close() noexcept { stream_.reset(); }

void WatchedStream::NoteState(MonotonicNanos now) {
  if (!options_.log) return;
  const std::optional<std::string> line = notes_.Look(board_.status(), now);
  if (!line) return;
  const StreamState state = board_.status().state;
  const bool good = state == StreamState::kSynchronised || state == StreamState::kRecovering;
  Log(options_.log, good ? LogLevel::kInfo : LogLevel::kWarning, fmt::format("{}: {}", Title(), *line));
}

// What is wrong with a name is said when it changes.
void WatchedStream::NoteLookups() {
  if (!options_.log) return;
  const std::string& replay = replay_address_ ? replay_address_->failure() : live_address_->failure();
  const std::string& failed = live_address_->failure().empty() ? replay : live_address_->failure();
  if (failed == lookups_failed_) return;
  lookups_failed_ = failed;
  if (!failed.empty()) Log(options_.log, LogLevel::kWarning, fmt::format("{}: {}", Title(), EscapeText(failed)));
}

void WatchedStream::NoteRank() {
  if (!options_.log) return;
  const std::optional<std::string> line = ranks_.Look(address(), sink_->checker().last_rank());
  if (line) Log(options_.log, LogLevel::kWarning, fmt::format("{}: {}", Title(), *line));
}

std::string WatchedStream::Title() const {
  const std::string endpoint = address().endpoint.ToString();
  const std::string where = address().name == endpoint ? std::string() : fmt::format(" ({})", endpoint);
  return EscapeText(address().name) + where;
}

}  // namespace kvwire
