// SPDX-License-Identifier: Apache-2.0
#include "kv_events/transport/zmq_link.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zmq.h>
#include <zmq.hpp>

#include "kv_events/transport/address_probe.h"

namespace kvwire {

namespace {

// Below this size a copy is cheaper than the counted hand-over.
constexpr std::size_t kShareBytes = 1024;
constexpr int kHandshakeMillis = 5000;
// In the system's buffer of a connection whose peer may not send much.
constexpr int kPublisherReceiveBytes = 32 << 10;
// How long the destructor waits for a bound address to become free.
constexpr std::chrono::milliseconds kReleaseTime(200);

int SocketType(LinkKind kind) {
  switch (kind) {
    case LinkKind::kPub:
      return ZMQ_XPUB;
    case LinkKind::kRouter:
      return ZMQ_ROUTER;
    case LinkKind::kSub:
      return ZMQ_SUB;
    case LinkKind::kDealer:
      return ZMQ_DEALER;
  }
  return ZMQ_XPUB;
}

std::string_view SocketName(LinkKind kind) {
  switch (kind) {
    case LinkKind::kPub:
      return "PUB socket (endpoint)";
    case LinkKind::kRouter:
      return "ROUTER socket (replay_endpoint)";
    case LinkKind::kSub:
      return "SUB socket";
    case LinkKind::kDealer:
      return "DEALER socket";
  }
  return {};
}

template <class T>
bool SetOption(void* socket, int option, const T& value) noexcept {
  return zmq_setsockopt(socket, option, &value, sizeof(value)) == 0;
}

// The system's own question whether the other machine is there: after a silence of kIdle, kTimes times. It is asked of
// the network only, so that a peer that reads slowly, or not at all for a while, stays.
bool KeepAlive(void* socket) noexcept {
  constexpr int kOn = 1;
  constexpr int kIdle = 15;  // seconds
  constexpr int kPause = 5;  // seconds
  constexpr int kTimes = 3;
  return SetOption(socket, ZMQ_TCP_KEEPALIVE, kOn) && SetOption(socket, ZMQ_TCP_KEEPALIVE_IDLE, kIdle) &&
         SetOption(socket, ZMQ_TCP_KEEPALIVE_INTVL, kPause) && SetOption(socket, ZMQ_TCP_KEEPALIVE_CNT, kTimes);
}

bool SetHeartbeat(void* socket, std::chrono::milliseconds interval) noexcept {
  const auto millis = static_cast<int>(std::clamp<std::int64_t>(interval.count(), 0, 3'600'000));
  // Peers count it in 16 bits of milliseconds.
  constexpr int kLongestLife = 65'000;
  const int life = 3 * millis <= kLongestLife ? 3 * millis : 0;
  return SetOption(socket, ZMQ_HEARTBEAT_IVL, millis) && SetOption(socket, ZMQ_HEARTBEAT_TIMEOUT, 2 * millis) &&
         SetOption(socket, ZMQ_HEARTBEAT_TTL, life);
}

tl::unexpected<Error> Explain(std::string_view act, LinkKind kind, const std::string& endpoint, int reason) {
  ErrorCode code = ErrorCode::kUnavailable;
  if (reason == EADDRINUSE) code = ErrorCode::kAddressInUse;
  if (reason == EINVAL) code = ErrorCode::kInvalidArgument;
  return MakeError(code, fmt::format("cannot {} the {} {}: {}", act, SocketName(kind), endpoint, zmq_strerror(reason)));
}

// How many descriptors libzmq opens for a link at once; without them it ends the process.
int DescriptorsFor(const ZmqContext& context, const LinkOptions& options) noexcept {
  constexpr int kThreads = 4;   // a mailbox and an epoll instance each, for the I/O thread and for the one that closes
  constexpr int kSocket = 1;    // its mailbox
  constexpr int kMonitor = 2;   // the mailboxes of both ends
  constexpr int kListener = 1;  // or connection; before that, what looks up the address
  return (context.running() ? 0 : kThreads) + kSocket + (options.watch_peers ? kMonitor : 0) + kListener;
}

// 0, or why so many descriptors cannot be opened.
int TryDescriptors(int count) noexcept {
  constexpr int kMost = 16;
  std::array<int, kMost> opened{};
  int reason = 0;
  int number = 0;
  while (number < std::min(count, kMost) && reason == 0) {
    opened[number] = eventfd(0, EFD_CLOEXEC);
    if (opened[number] < 0) {
      reason = errno;
    } else {
      ++number;
    }
  }
  while (number > 0) close(opened[--number]);
  return reason;
}

std::string LastEndpoint(void* socket) {
  std::array<char, 512> text{};
  std::size_t size = text.size();
  if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, text.data(), &size) != 0 || size == 0) return {};
  return std::string(text.data(), size - 1);  // counted with its terminating zero
}

bool NeedsIpv6(const Endpoint& endpoint) {
  return endpoint.scheme == Endpoint::Scheme::kTcp && (endpoint.host.starts_with('[') || endpoint.host == "::");
}

void DropShared(void*, void* hint) { delete static_cast<SharedBytes*>(hint); }

bool FillMessage(zmq_msg_t* message, const OutFrame& frame) noexcept {
  if (frame.shared && frame.bytes.size() >= kShareBytes) {
    auto* hint = new (std::nothrow) SharedBytes(frame.shared);
    // libzmq only reads the bytes of a message that is sent.
    auto* bytes = const_cast<std::uint8_t*>(frame.bytes.data());
    if (hint != nullptr && zmq_msg_init_data(message, bytes, frame.bytes.size(), DropShared, hint) == 0) return true;
    delete hint;
  }
  if (zmq_msg_init_size(message, frame.bytes.size()) != 0) return false;
  if (!frame.bytes.empty()) std::memcpy(zmq_msg_data(message), frame.bytes.data(), frame.bytes.size());
  return true;
}

SendResult SendOne(void* socket, const OutFrame& frame, int flags) noexcept {
  zmq_msg_t message;
  if (!FillMessage(&message, frame)) return SendResult::kFailed;
  while (zmq_msg_send(&message, socket, flags) < 0) {
    const int reason = errno;
    if (reason == EINTR) continue;
    zmq_msg_close(&message);
    if (reason == EAGAIN) return SendResult::kWouldBlock;
    return reason == EHOSTUNREACH ? SendResult::kUnroutable : SendResult::kFailed;
  }
  return SendResult::kSent;
}

// The next frame, if one is there.
bool ReceiveFrame(void* socket, zmq::message_t* frame) noexcept {
  while (zmq_msg_recv(frame->handle(), socket, ZMQ_DONTWAIT) < 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

}  // namespace

// Counts what libzmq reports about a socket's connections. Its own end is a PAIR socket; both go when it goes.
class ZmqLink::Monitor {
 public:
  Monitor(const ZmqContext& context, void* watched) : watched_(watched) {
    constexpr int kEvents =
        ZMQ_EVENT_HANDSHAKE_SUCCEEDED | kHandshakeFailed | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_ACCEPT_FAILED;
    static std::atomic<std::uint64_t> next{0};
    const std::string address = fmt::format("inproc://kvwire.monitor.{}", next.fetch_add(1));
    if (zmq_socket_monitor(watched_, address.c_str(), kEvents) != 0) return;
    pair_ = zmq_socket(context.handle(), ZMQ_PAIR);
    if (pair_ == nullptr) return;
    SetOption(pair_, ZMQ_LINGER, 0);
    SetOption(pair_, ZMQ_RCVHWM, 0);
    if (zmq_connect(pair_, address.c_str()) == 0) return;
    zmq_close(pair_);
    pair_ = nullptr;
  }
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;
  ~Monitor() {
    zmq_socket_monitor(watched_, nullptr, 0);
    if (pair_ != nullptr) zmq_close(pair_);
  }

  const PeerCounts& Count() noexcept {
    zmq::message_t frame;
    while (pair_ != nullptr && ReceiveFrame(pair_, &frame)) {
      // An event is two frames: its number in the first two bytes of the first, and an address.
      std::uint16_t event = 0;
      if (frame.more() && frame.size() >= sizeof(event)) std::memcpy(&event, frame.data(), sizeof(event));
      Note(event);
    }
    return counts_;
  }

 private:
  void Note(int event) noexcept {
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) ++counts_.connected;
    if ((event & kHandshakeFailed) != 0) ++failed_handshakes_;
    // A connection that never finished its handshake is reported as ended, too.
    if (event == ZMQ_EVENT_DISCONNECTED) {
      if (failed_handshakes_ > 0) {
        --failed_handshakes_;
      } else if (counts_.present() > 0) {
        ++counts_.disconnected;
      }
    }
    if (event == ZMQ_EVENT_ACCEPT_FAILED) ++counts_.accept_failed;
  }

  static constexpr int kHandshakeFailed =
      ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

  void* const watched_;
  void* pair_ = nullptr;
  std::uint64_t failed_handshakes_ = 0;  // whose end was not reported yet
  PeerCounts counts_;
};

ZmqLink::ZmqLink(std::shared_ptr<ZmqContext> context, void* socket, LinkKind kind, const LinkOptions& options)
    : context_(std::move(context)), socket_(socket), kind_(kind), max_frames_(options.max_frames) {}

// The file goes first, while it is certainly ours; who is connected keeps the connection.
// Closing a socket frees its address some time later, on a thread of libzmq; a successor must not find it taken.
// Unbinding first would be of no use for tcp and ipc: it cuts off peers that still have messages to take.
ZmqLink::~ZmqLink() {
  if (forked()) return;
  monitor_->reset();
  const bool inproc = endpoint_.starts_with("inproc://");
  if (bound_ && inproc) zmq_unbind(socket_, endpoint_.c_str());
  if (file_) file_->Remove();
  zmq_close(socket_);
  if (!bound_ || inproc) return;
  if (const Result<Endpoint> endpoint = Endpoint::Parse(endpoint_, "endpoint")) WaitUntilFree(*endpoint, kReleaseTime);
}

// Before bind and connect: most options have no effect on addresses that a socket already has.
bool ZmqLink::Configure(const Endpoint& endpoint, const LinkOptions& options) noexcept {
  bool done = SetOption(socket_, ZMQ_LINGER, 0) && SetOption(socket_, ZMQ_SNDHWM, options.send_hwm) &&
              SetOption(socket_, ZMQ_RCVHWM, options.receive_hwm) &&
              SetOption(socket_, ZMQ_MAXMSGSIZE, options.max_message_bytes) &&
              SetOption(socket_, ZMQ_HANDSHAKE_IVL, kHandshakeMillis) &&
              SetOption(socket_, ZMQ_RECONNECT_IVL_MAX, static_cast<int>(options.reconnect_max.count())) &&
              SetOption(socket_, ZMQ_IPV6, NeedsIpv6(endpoint) ? 1 : 0) && KeepAlive(socket_);
  switch (kind_) {
    case LinkKind::kPub:
      // Every subscription and its end, also when others have the same.
      done = done && SetOption(socket_, ZMQ_XPUB_VERBOSER, 1);
      // What has arrived of a peer that is disconnected for sending too much is still taken.
      if (options.peer_limits.any()) done = done && SetOption(socket_, ZMQ_RCVBUF, kPublisherReceiveBytes);
      break;
    case LinkKind::kRouter:
      done = done && SetOption(socket_, ZMQ_ROUTER_MANDATORY, 1) && SetOption(socket_, ZMQ_ROUTER_HANDOVER, 1);
      break;
    case LinkKind::kSub:
      done =
          done && zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, options.subscription.data(), options.subscription.size()) == 0;
      done = done && SetHeartbeat(socket_, options.heartbeat);
      break;
    case LinkKind::kDealer:
      done = done && (options.identity.empty() ||
                      zmq_setsockopt(socket_, ZMQ_ROUTING_ID, options.identity.data(), options.identity.size()) == 0);
      done = done && SetHeartbeat(socket_, options.heartbeat);
      break;
  }
  return done;
}

Result<std::unique_ptr<ZmqLink>> ZmqLink::Open(std::shared_ptr<ZmqContext> context, LinkKind kind,
                                               const Endpoint& endpoint, const LinkOptions& options) {
  if (context->forked()) {
    return MakeError(ErrorCode::kUnavailable, fmt::format("cannot open the {} {}: its context was {}", SocketName(kind),
                                                          endpoint.ToString(), kForkedText));
  }
  const int descriptors = DescriptorsFor(*context, options);
  const int shortage = TryDescriptors(descriptors);
  if (shortage == EMFILE) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    return MakeError(ErrorCode::kUnavailable,
                     fmt::format("cannot open the {} {}: it takes {} file descriptors, and the limit of {} (ulimit -n) "
                                 "leaves fewer",
                                 SocketName(kind), endpoint.ToString(), descriptors, limit.rlim_cur));
  }
  if (shortage != 0) return Explain("open", kind, endpoint.ToString(), shortage);
  void* socket = context->handle() == nullptr ? nullptr : zmq_socket(context->handle(), SocketType(kind));
  if (socket == nullptr) return Explain("open", kind, endpoint.ToString(), zmq_errno());
  context->SetRunning();
  std::unique_ptr<ZmqLink> link(new ZmqLink(std::move(context), socket, kind, options));
  if (!link->Configure(endpoint, options)) return Explain("configure", kind, endpoint.ToString(), zmq_errno());
  if (options.watch_peers) *link->monitor_ = std::make_unique<Monitor>(*link->context_, socket);
  return link;
}

Result<std::unique_ptr<ZmqLink>> ZmqLink::Bind(std::shared_ptr<ZmqContext> context, LinkKind kind,
                                               const Endpoint& endpoint, const LinkOptions& options) {
  Result<std::unique_ptr<ZmqLink>> link = Open(std::move(context), kind, endpoint, options);
  if (!link) return link;
  const std::string address = endpoint.ToString();
  // libzmq removes what is at an ipc path before it binds, whatever it is.
  const bool ipc = endpoint.scheme == Endpoint::Scheme::kIpc;
  if (ipc && SocketFile::IsSomethingElse(endpoint.path)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("cannot bind the {} {}: what is at this path is no socket; allowed: a path where "
                                 "nothing is, or a socket that nobody serves",
                                 SocketName(kind), address));
  }
  if (ipc && UnixSocketAnswers(endpoint.path)) return Explain("bind", kind, address, EADDRINUSE);
  if (zmq_bind((*link)->socket_, address.c_str()) != 0) {
    tl::unexpected<Error> failed = Explain("bind", kind, address, zmq_errno());
    if (failed.value().code != ErrorCode::kAddressInUse) failed.value().message += BindHint(endpoint);
    return failed;
  }
  (*link)->bound_ = true;
  if (ipc) (*link)->file_ = SocketFile::At(endpoint.path);
  (*link)->endpoint_ = LastEndpoint((*link)->socket_);
  if (options.peer_limits.any()) (*link)->LimitPeers(options.peer_limits);
  return link;
}

Result<std::unique_ptr<ZmqLink>> ZmqLink::Connect(std::shared_ptr<ZmqContext> context, LinkKind kind,
                                                  const Endpoint& endpoint, const LinkOptions& options) {
  Result<std::unique_ptr<ZmqLink>> link = Open(std::move(context), kind, endpoint, options);
  if (!link) return link;
  const std::string address = endpoint.ToString();
  ZmqLink& made = **link;
  if (zmq_connect(made.socket_, address.c_str()) != 0) return Explain("connect", kind, address, zmq_errno());
  made.endpoint_ = address;
  return link;
}

void ZmqLink::LimitPeers(const PeerLimits& limits) {
  Result<Endpoint> bound = Endpoint::Parse(endpoint_, "endpoint");
  if (bound) bound_peers_.emplace(limits, *std::move(bound));
}

void ZmqLink::SetLinger(std::chrono::milliseconds linger) noexcept {
  if (forked()) return;
  SetOption(socket_, ZMQ_LINGER, static_cast<int>(std::clamp<std::int64_t>(linger.count(), 0, 1 << 30)));
}

SendResult ZmqLink::TrySend(std::span<const OutFrame> frames) noexcept {
  if (forked()) return SendResult::kFailed;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
    const SendResult result = SendOne(socket_, frames[i], ZMQ_DONTWAIT | more);
    if (result == SendResult::kSent) continue;
    // Only the first frame decides whether there is room; a later one fails when the socket itself does.
    return i == 0 ? result : SendResult::kFailed;
  }
  return SendResult::kSent;
}

std::optional<InFrames> ZmqLink::TryReceive() {
  if (forked()) return std::nullopt;
  std::optional<InFrames> frames;
  for (bool more = true; more;) {
    zmq::message_t frame;
    // Messages arrive whole: only the first frame can be missing, unless the socket broke.
    if (!ReceiveFrame(socket_, &frame)) return std::nullopt;
    if (!frames) frames.emplace();
    if (bound_peers_) bound_peers_->Note(frame.handle());
    const auto* bytes = frame.data<std::uint8_t>();
    if (frames->size() < max_frames_) frames->emplace_back(bytes, bytes + frame.size());
    more = frame.more();
  }
  return frames;
}

std::string ZmqLink::endpoint() const { return endpoint_; }

PeerCounts ZmqLink::peers() noexcept { return *monitor_ && !forked() ? (*monitor_)->Count() : PeerCounts(); }

WakeSignal::WakeSignal() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

WakeSignal::~WakeSignal() {
  if (fd_ >= 0) close(fd_);
}

void WakeSignal::Wake() noexcept {
  // Fails only when the counter is full, and then the waiting thread wakes anyway.
  [[maybe_unused]] const int done = eventfd_write(fd_, 1);
}

void WakeSignal::Drain() noexcept {
  eventfd_t count = 0;
  [[maybe_unused]] const int done = eventfd_read(fd_, &count);
}

void WaitForInput(std::span<ZmqLink* const> links, WakeSignal* signal, std::chrono::microseconds timeout) {
  constexpr std::size_t kFew = 8;  // without an allocation
  std::array<pollfd, kFew> few{};
  std::vector<pollfd> many(links.size() < kFew ? 0 : links.size() + 1);
  pollfd* const polled = many.empty() ? few.data() : many.data();
  nfds_t count = 0;
  if (signal != nullptr && signal->fd() >= 0) polled[count++] = {signal->fd(), POLLIN, 0};
  for (ZmqLink* link : links) {
    if (link == nullptr || link->forked()) continue;
    // The descriptor fires only on a change, so what is there already must be asked for; asking also lets the socket
    // act on what its I/O thread told it.
    int events = 0;
    int fd = -1;
    std::size_t size = sizeof(events);
    if (zmq_getsockopt(link->handle(), ZMQ_EVENTS, &events, &size) != 0 || (events & ZMQ_POLLIN) != 0) return;
    if (zmq_getsockopt(link->handle(), ZMQ_FD, &fd, &size) != 0) return;
    polled[count++] = {fd, POLLIN, 0};
  }
  const auto nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(timeout).count();
  const timespec limit{static_cast<std::time_t>(nanos / 1'000'000'000), static_cast<long>(nanos % 1'000'000'000)};
  ppoll(polled, count, &limit, nullptr);
  if (signal != nullptr) signal->Drain();
}

}  // namespace kvwire
