// SPDX-License-Identifier: Apache-2.0
#include "kv_events/transport/zmq_link.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/own_loopback.h"

namespace kvwire {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;
using test::OwnLoopback;

using LinkResult = Result<std::unique_ptr<ZmqLink>>;

LinkResult Bind(const std::shared_ptr<ZmqContext>& context, LinkKind kind, const std::string& text,
                const LinkOptions& options = {}) {
  return ZmqLink::Bind(context, kind, *Endpoint::Parse(text, "endpoint"), options);
}

// Connects to "tcp://127.0.0.1:PORT" without ZeroMQ, sends these bytes, waits for an answer or the end, and goes.
void PokePort(const std::string& endpoint, std::string_view bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(fd >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  REQUIRE(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  REQUIRE(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  char answer[64];
  [[maybe_unused]] const ssize_t got = recv(fd, answer, sizeof(answer), 0);
  close(fd);
}

std::unique_ptr<ZmqLink> MustBind(const std::shared_ptr<ZmqContext>& context, LinkKind kind, const std::string& text,
                                  const LinkOptions& options = {}) {
  LinkResult link = Bind(context, kind, text, options);
  REQUIRE_MESSAGE(link.has_value(), (link ? "" : link.error().message));
  return std::move(*link);
}

std::unique_ptr<ZmqLink> MustConnect(const std::shared_ptr<ZmqContext>& context, LinkKind kind, const std::string& text,
                                     const LinkOptions& options = {}) {
  LinkResult link = ZmqLink::Connect(context, kind, *Endpoint::Parse(text, "endpoint"), options);
  REQUIRE_MESSAGE(link.has_value(), (link ? "" : link.error().message));
  return std::move(*link);
}

bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + seconds(5);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

std::optional<InFrames> Receive(ZmqLink* link) {
  std::optional<InFrames> frames;
  Eventually([&] { return (frames = link->TryReceive()).has_value(); });
  return frames;
}

std::vector<std::uint8_t> Bytes(std::string_view text) { return {text.begin(), text.end()}; }

SendResult Send(ZmqLink* link, const InFrames& frames) {
  std::vector<OutFrame> out;
  for (const auto& frame : frames) out.push_back(OutFrame::Copy(frame));
  return link->TrySend(out);
}

// A path of this process for an ipc address.
class OwnPath {
 public:
  explicit OwnPath(const std::string& name) : path_("/tmp/kvwire-test-" + name + std::to_string(getpid())) {}
  OwnPath(const OwnPath&) = delete;
  OwnPath& operator=(const OwnPath&) = delete;
  ~OwnPath() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string address() const { return "ipc://" + path_; }
  bool Exists() const { return std::filesystem::exists(std::filesystem::symlink_status(path_)); }

 private:
  const std::string path_;
};

LinkOptions Subscription(std::string topic) {
  LinkOptions options;
  options.subscription = std::move(topic);
  return options;
}

TEST_CASE("a bound link reports the port that the system chose") {
  const auto context = ZmqContext::Create();
  const auto pub = MustBind(context, LinkKind::kPub, "tcp://127.0.0.1:0");
  const Result<Endpoint> endpoint = Endpoint::Parse(pub->endpoint(), "endpoint");
  REQUIRE(endpoint);
  CHECK(endpoint->host == "127.0.0.1");
  CHECK(*endpoint->port > 1023);
}

TEST_CASE("B2: a wildcard host and port bind and are read back") {
  const auto context = ZmqContext::Create();
  for (const std::string text : {"tcp://*:0", "tcp://*:*", "tcp://0.0.0.0:0"}) {
    CAPTURE(text);
    CHECK(MustBind(context, LinkKind::kPub, text)->endpoint().starts_with("tcp://0.0.0.0:"));
  }
}

TEST_CASE("frames of every size arrive whole, shared or copied") {
  const auto context = ZmqContext::Create();
  for (const std::string text : {"tcp://127.0.0.1:0", "inproc://sizes", "ipc://*"}) {
    CAPTURE(text);
    const auto router = MustBind(context, LinkKind::kRouter, text);
    const auto dealer = MustConnect(context, LinkKind::kDealer, router->endpoint());
    for (const std::size_t size : {0u, 1u, 8u, 1023u, 1024u, 100000u}) {
      CAPTURE(size);
      const auto shared = std::make_shared<const std::vector<std::uint8_t>>(size, std::uint8_t{7});
      const OutFrame frames[] = {OutFrame{}, OutFrame::Share(shared), OutFrame::Copy(*shared)};
      REQUIRE(dealer->TrySend(frames) == SendResult::kSent);
      const std::optional<InFrames> got = Receive(router.get());
      REQUIRE(got);
      REQUIRE(got->size() == 4);
      CHECK((*got)[1].empty());
      CHECK((*got)[2] == *shared);
      CHECK((*got)[3] == *shared);
      CHECK(Eventually([&] { return shared.use_count() == 2; }));  // here and in frames
    }
  }
}

TEST_CASE("shared bytes outlive the sender's reference and are released after delivery") {
  const auto context = ZmqContext::Create();
  const auto router = MustBind(context, LinkKind::kRouter, "inproc://lifetime");
  const auto dealer = MustConnect(context, LinkKind::kDealer, "inproc://lifetime");
  auto shared = std::make_shared<const std::vector<std::uint8_t>>(5000, std::uint8_t{9});
  const std::weak_ptr<const std::vector<std::uint8_t>> watch = shared;
  {
    const OutFrame frames[] = {OutFrame::Share(std::move(shared))};
    REQUIRE(dealer->TrySend(frames) == SendResult::kSent);
  }
  CHECK_FALSE(watch.expired());
  const std::optional<InFrames> got = Receive(router.get());
  REQUIRE(got);
  CHECK((*got)[1] == std::vector<std::uint8_t>(5000, 9));
  CHECK(watch.expired());
}

TEST_CASE("a subscriber hears its prefix only") {
  const auto context = ZmqContext::Create();
  const auto pub = MustBind(context, LinkKind::kPub, "inproc://topics");
  const auto sub = MustConnect(context, LinkKind::kSub, "inproc://topics", Subscription("foo"));
  ZmqLink* const links[] = {pub.get()};
  WaitForInput(links, nullptr, microseconds(0));
  for (const char* topic : {"bar", "foobar"}) CHECK(Send(pub.get(), {Bytes(topic)}) == SendResult::kSent);
  CHECK(Receive(sub.get()) == InFrames{Bytes("foobar")});
}

TEST_CASE("J2: a slow subscriber loses whole messages and the publisher notices nothing") {
  const auto context = ZmqContext::Create();
  LinkOptions small;
  small.send_hwm = 10;
  const auto pub = MustBind(context, LinkKind::kPub, "inproc://slow", small);
  LinkOptions slow = Subscription("");
  slow.receive_hwm = 10;
  const auto sub = MustConnect(context, LinkKind::kSub, "inproc://slow", slow);
  ZmqLink* const links[] = {pub.get()};
  WaitForInput(links, nullptr, microseconds(0));
  for (int i = 0; i < 5000; ++i) REQUIRE(Send(pub.get(), {Bytes("t"), Bytes("seq"), Bytes("p")}) == SendResult::kSent);
  std::size_t received = 0;
  while (const std::optional<InFrames> frames = sub->TryReceive()) {
    CHECK(frames->size() == 3);
    ++received;
  }
  CHECK(received > 0);
  CHECK(received < 5000);
}

TEST_CASE("J3: a router says when a peer is full, unknown or gone") {
  const auto context = ZmqContext::Create();
  LinkOptions small;
  small.send_hwm = 5;
  const auto router = MustBind(context, LinkKind::kRouter, "inproc://router", small);
  LinkOptions named;
  named.identity = "A";
  named.receive_hwm = 5;
  auto dealer = MustConnect(context, LinkKind::kDealer, "inproc://router", named);
  REQUIRE(Send(dealer.get(), {Bytes("hello")}) == SendResult::kSent);
  REQUIRE(Receive(router.get()) == InFrames{Bytes("A"), Bytes("hello")});

  CHECK(Send(router.get(), {Bytes("B"), Bytes("x")}) == SendResult::kUnroutable);
  SendResult last = SendResult::kSent;
  std::size_t sent = 0;
  for (; sent < 1000 && last == SendResult::kSent; ++sent) last = Send(router.get(), {Bytes("A"), Bytes("x")});
  CHECK(last == SendResult::kWouldBlock);
  CHECK(sent < 1000);
  REQUIRE(Receive(dealer.get()));
  dealer.reset();
  CHECK(Eventually([&] {
    router->TryReceive();
    return Send(router.get(), {Bytes("A"), Bytes("x")}) == SendResult::kUnroutable;
  }));
}

TEST_CASE("J3: of two peers with one identity the later takes over") {
  const auto context = ZmqContext::Create();
  const auto router = MustBind(context, LinkKind::kRouter, "tcp://127.0.0.1:0");
  LinkOptions named;
  named.identity = "same";
  const auto first = MustConnect(context, LinkKind::kDealer, router->endpoint(), named);
  REQUIRE(Send(first.get(), {Bytes("1")}) == SendResult::kSent);
  REQUIRE(Receive(router.get()));
  const auto second = MustConnect(context, LinkKind::kDealer, router->endpoint(), named);
  REQUIRE(Send(second.get(), {Bytes("2")}) == SendResult::kSent);
  REQUIRE(Receive(router.get()) == InFrames{Bytes("same"), Bytes("2")});
  CHECK(Send(router.get(), {Bytes("same"), Bytes("answer")}) == SendResult::kSent);
  CHECK(Receive(second.get()) == InFrames{Bytes("answer")});
  CHECK_FALSE(first->TryReceive());
}

TEST_CASE("frames beyond the bound are thrown away with their message kept") {
  const auto context = ZmqContext::Create();
  LinkOptions bounded;
  bounded.max_frames = 3;
  const auto router = MustBind(context, LinkKind::kRouter, "inproc://many", bounded);
  const auto dealer = MustConnect(context, LinkKind::kDealer, "inproc://many");
  REQUIRE(Send(dealer.get(), InFrames(1000, Bytes("x"))) == SendResult::kSent);
  REQUIRE(Send(dealer.get(), {Bytes("next")}) == SendResult::kSent);
  const std::optional<InFrames> many = Receive(router.get());
  REQUIRE(many);
  CHECK(many->size() == 3);
  const std::optional<InFrames> next = Receive(router.get());
  REQUIRE(next);
  CHECK((*next)[1] == Bytes("next"));
}

TEST_CASE("B3: a taken address is refused with socket, address and reason, and is free after closing") {
  const auto context = ZmqContext::Create();
  auto holder = MustBind(context, LinkKind::kPub, "tcp://" + OwnLoopback() + ":0");
  const std::string taken = holder->endpoint();
  const LinkResult second = Bind(context, LinkKind::kRouter, taken);
  REQUIRE_FALSE(second);
  CHECK(second.error().code == ErrorCode::kAddressInUse);
  for (const std::string& part :
       {std::string("ROUTER"), std::string("replay_endpoint"), taken, std::string("Address already in use")}) {
    CHECK_MESSAGE(second.error().message.find(part) != std::string::npos, second.error().message);
  }
  for (int i = 0; i < 50; ++i) {
    holder.reset();
    REQUIRE(Eventually([&] {
      LinkResult again = Bind(context, LinkKind::kPub, taken);
      if (again) holder = std::move(*again);
      return again.has_value();
    }));
  }
}

TEST_CASE("B3: a path or name that somebody holds is refused too") {
  const auto context = ZmqContext::Create();
  const OwnPath file("held");
  for (const std::string& text : {file.address(), std::string("inproc://held")}) {
    CAPTURE(text);
    auto holder = MustBind(context, LinkKind::kPub, text);
    const LinkResult second = Bind(context, LinkKind::kPub, text);
    REQUIRE_FALSE(second);
    CHECK(second.error().code == ErrorCode::kAddressInUse);
    holder.reset();
    CHECK(Eventually([&] { return Bind(context, LinkKind::kPub, text).has_value(); }));
  }
}

// A Unix socket without ZeroMQ; the file stays when it ends.
class PlainSocket {
 public:
  PlainSocket(const std::string& path, int type) : fd_(socket(AF_UNIX, type, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    REQUIRE(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  }
  PlainSocket(const PlainSocket&) = delete;
  PlainSocket& operator=(const PlainSocket&) = delete;
  ~PlainSocket() { close(fd_); }

 private:
  const int fd_;
};

TEST_CASE("B3: an ipc path that holds something else than a socket is refused by name, and stays as it is") {
  const auto context = ZmqContext::Create();
  const OwnPath file("notes");
  SUBCASE("a file") { std::ofstream(file.path()) << "notes"; }
  SUBCASE("a directory") { std::filesystem::create_directory(file.path()); }
  SUBCASE("a pipe") { REQUIRE(mkfifo(file.path().c_str(), 0600) == 0); }
  SUBCASE("a link") { std::filesystem::create_symlink("nowhere", file.path()); }
  const auto before = std::filesystem::symlink_status(file.path()).type();
  const LinkResult link = Bind(context, LinkKind::kPub, file.address());
  REQUIRE_FALSE(link);
  CHECK(link.error().code == ErrorCode::kInvalidArgument);
  for (const std::string& part :
       {std::string("PUB socket (endpoint)"), file.address(), std::string("is no socket"), std::string("allowed: ")}) {
    CHECK_MESSAGE(link.error().message.find(part) != std::string::npos, link.error().message);
  }
  CHECK(std::filesystem::symlink_status(file.path()).type() == before);
  if (before != std::filesystem::file_type::regular) return;
  std::ifstream in(file.path());
  CHECK(std::string(std::istreambuf_iterator<char>(in), {}) == "notes");
}

TEST_CASE("B3: a socket file that nobody serves is taken over, one that somebody holds is not") {
  const auto context = ZmqContext::Create();
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    CAPTURE(type);
    const OwnPath file("stale");
    {
      const PlainSocket holder(file.path(), type);
      // One that only receives datagrams is in use, too.
      if (type == SOCK_DGRAM) {
        const LinkResult link = Bind(context, LinkKind::kPub, file.address());
        REQUIRE_FALSE(link);
        CHECK(link.error().code == ErrorCode::kAddressInUse);
        CHECK(file.Exists());
      }
    }
    REQUIRE(file.Exists());
    CHECK(Bind(context, LinkKind::kPub, file.address()).has_value());
  }
}

TEST_CASE("B3: the file of an ipc address goes with the link that made it, and no other file does") {
  const auto context = ZmqContext::Create();
  const OwnPath file("own");
  auto link = MustBind(context, LinkKind::kPub, file.address());
  CHECK(file.Exists());
  link.reset();
  CHECK_FALSE(file.Exists());

  link = MustBind(context, LinkKind::kPub, file.address());
  std::filesystem::remove(file.path());
  const PlainSocket other(file.path(), SOCK_STREAM);
  link.reset();
  CHECK(file.Exists());
  // A link that only connects made nothing.
  MustConnect(context, LinkKind::kSub, file.address()).reset();
  CHECK(file.Exists());
}

class DescriptorLimit {
 public:
  DescriptorLimit() { getrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  void Set(rlim_t limit) const {
    rlimit low = before_;
    low.rlim_cur = limit;
    setrlimit(RLIMIT_NOFILE, &low);
  }
  rlim_t most() const noexcept { return before_.rlim_max; }

 private:
  rlimit before_{};
};

TEST_CASE("one context has room for the links of hundreds of ranks") {
  const DescriptorLimit limit;
  limit.Set(std::min<rlim_t>(limit.most(), 4096));
  if (limit.most() < 4096) return;  // as few descriptors as a context had sockets
  const auto context = ZmqContext::Create();
  std::vector<LinkResult> links;
  for (int i = 0; i < 1200; ++i) {
    const Endpoint endpoint = *Endpoint::Parse("inproc://rank" + std::to_string(i), "endpoint");
    links.push_back(ZmqLink::Connect(context, LinkKind::kSub, endpoint, LinkOptions()));
    REQUIRE(links.back());
  }
}

TEST_CASE("J4: where descriptors are too few for a link it is refused by the limit's name, and the process goes on") {
  const OwnPath file("few");
  LinkOptions watching;
  watching.watch_peers = true;
  for (const std::string& text : {std::string("tcp://127.0.0.1:0"), std::string("tcp://*:0"), file.address()}) {
    for (const LinkOptions& options : {LinkOptions(), watching}) {
      CAPTURE(text);
      CAPTURE(options.watch_peers);
      const DescriptorLimit limit;
      bool refused = false;
      int opened = 0;
      for (rlim_t few = 1; few <= 64 && opened < 4; ++few) {
        CAPTURE(few);
        limit.Set(few);
        // The first link of a context starts its threads; the second does not.
        const auto context = ZmqContext::Create();
        const LinkResult first = Bind(context, LinkKind::kPub, text, options);
        const LinkResult second =
            ZmqLink::Connect(context, LinkKind::kSub, *Endpoint::Parse("tcp://127.0.0.1:9", "endpoint"), options);
        limit.Set(256);
        opened += first && second ? 1 : 0;
        for (const LinkResult* link : {&first, &second}) {
          if (*link) continue;
          refused = true;
          CHECK(link->error().code == ErrorCode::kUnavailable);
          const std::string expected = "limit of " + std::to_string(few) + " (ulimit -n)";
          CHECK_MESSAGE(link->error().message.find(expected) != std::string::npos, link->error().message);
        }
      }
      CHECK(refused);
      CHECK(opened == 4);
    }
  }
}

TEST_CASE("an address that is not this machine's is refused as unavailable") {
  const auto context = ZmqContext::Create();
  const LinkResult link = Bind(context, LinkKind::kPub, "tcp://192.0.2.1:0");
  REQUIRE_FALSE(link);
  CHECK(link.error().code == ErrorCode::kUnavailable);
}

TEST_CASE("bracketed hosts speak IPv6") {
  const auto context = ZmqContext::Create();
  const LinkResult router = Bind(context, LinkKind::kRouter, "tcp://[::1]:0");
  if (!router) {
    MESSAGE("no IPv6 here: " << router.error().message);
    return;
  }
  const auto dealer = MustConnect(context, LinkKind::kDealer, (*router)->endpoint());
  REQUIRE(Send(dealer.get(), {Bytes("six")}) == SendResult::kSent);
  CHECK(Receive(router->get()));
}

TEST_CASE("a watching link counts the connections that came and went, at either end") {
  const auto context = ZmqContext::Create();
  LinkOptions watching;
  watching.watch_peers = true;
  const auto listener = MustBind(context, LinkKind::kSub, "tcp://127.0.0.1:0", watching);
  CHECK(listener->peers() == PeerCounts());
  auto pub = MustConnect(context, LinkKind::kPub, listener->endpoint(), watching);
  CHECK(Eventually([&] { return pub->peers() == PeerCounts{1, 0, 0}; }));
  CHECK(Eventually([&] { return listener->peers() == PeerCounts{1, 0, 0}; }));
  pub.reset();
  CHECK(Eventually([&] { return listener->peers() == PeerCounts{1, 1, 0}; }));
  const auto blind = MustConnect(context, LinkKind::kPub, listener->endpoint());
  CHECK(Eventually([&] { return listener->peers() == PeerCounts{2, 1, 0}; }));
  CHECK(blind->peers() == PeerCounts());
}

TEST_CASE("connections that do not speak the protocol are no peers, and their ends are no peer's end") {
  const auto context = ZmqContext::Create();
  LinkOptions watching;
  watching.watch_peers = true;
  const auto listener = MustBind(context, LinkKind::kSub, "tcp://127.0.0.1:0", watching);
  const auto pub = MustConnect(context, LinkKind::kPub, listener->endpoint());
  CHECK(Eventually([&] { return listener->peers() == PeerCounts{1, 0, 0}; }));
  for (const std::string_view said : {"", "GET / HTTP/1.1\r\n\r\n", "\xff"}) {
    PokePort(listener->endpoint(), said);
  }
  // A peer that comes after them is counted after them.
  const auto second = MustConnect(context, LinkKind::kPub, listener->endpoint());
  CHECK(Eventually([&] { return listener->peers().connected == 2; }));
  CHECK(listener->peers().disconnected == 0);
  CHECK(listener->peers().accept_failed == 0);
}

TEST_CASE("a connecting link sees its peer go and come back") {
  const auto context = ZmqContext::Create();
  LinkOptions watching;
  watching.watch_peers = true;
  auto pub = MustBind(context, LinkKind::kPub, "tcp://127.0.0.1:0");
  const std::string address = pub->endpoint();
  const auto sub = MustConnect(context, LinkKind::kSub, address, watching);
  CHECK(Eventually([&] { return sub->peers() == PeerCounts{1, 0, 0}; }));
  pub.reset();
  CHECK(Eventually([&] { return sub->peers() == PeerCounts{1, 1, 0}; }));
  pub = MustBind(context, LinkKind::kPub, address);
  CHECK(Eventually([&] { return sub->peers() == PeerCounts{2, 1, 0}; }));
}

// The descriptors of this process whose peer is this port of 127.0.0.1, or that are connections to it.
std::vector<int> ConnectionsAt(std::uint16_t port) {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    for (const auto name : {getpeername, getsockname}) {
      sockaddr_in address{};
      socklen_t size = sizeof(address);
      int listens = 0;
      socklen_t listens_size = sizeof(listens);
      if (name(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 || address.sin_family != AF_INET) continue;
      if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_size) != 0 || listens != 0) continue;
      if (ntohs(address.sin_port) == port) found.push_back(fd);
    }
  }
  return found;
}

TEST_CASE("J5: both ends of a connection have the system ask whether the other machine is still there") {
  const auto context = ZmqContext::Create();
  for (const auto& [bound, connected] :
       {std::pair(LinkKind::kPub, LinkKind::kSub), {LinkKind::kRouter, LinkKind::kDealer}}) {
    LinkOptions watching;
    watching.watch_peers = true;
    const auto server = MustBind(context, bound, "tcp://127.0.0.1:0", watching);
    const auto client = MustConnect(context, connected, server->endpoint());
    REQUIRE(Eventually([&] { return server->peers().connected == 1; }));
    const std::vector<int> fds = ConnectionsAt(*Endpoint::Parse(server->endpoint(), "endpoint")->port);
    CHECK(fds.size() == 2);
    for (const int fd : fds) {
      int on = 0;
      socklen_t size = sizeof(on);
      REQUIRE(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &size) == 0);
      CHECK(on == 1);
    }
  }
}

TEST_CASE("what was sent is handed over after closing, within the linger") {
  const auto context = ZmqContext::Create();
  const auto router = MustBind(context, LinkKind::kRouter, "tcp://127.0.0.1:0");
  {
    const auto dealer = MustConnect(ZmqContext::Create(), LinkKind::kDealer, router->endpoint());
    dealer->SetLinger(seconds(5));
    for (int i = 0; i < 100; ++i) REQUIRE(Send(dealer.get(), {Bytes(std::string(10000, 'x'))}) == SendResult::kSent);
  }
  for (int i = 0; i < 100; ++i) REQUIRE(Receive(router.get()));
}

TEST_CASE("a slow reader gets what was sent to it before the sender closed, and the address is free meanwhile") {
  const OwnPath file("slow");
  for (const std::string& text : {"tcp://" + OwnLoopback() + ":0", file.address()}) {
    CAPTURE(text);
    constexpr int kMessages = 300;  // more than the kernel's buffers hold
    const auto context = ZmqContext::Create();
    auto pub = MustBind(ZmqContext::Create(), LinkKind::kPub, text);
    const std::string address = pub->endpoint();
    LinkOptions slow = Subscription("");
    slow.receive_hwm = 1;
    const auto sub = MustConnect(context, LinkKind::kSub, address, slow);
    REQUIRE(Eventually([&] {
      Send(pub.get(), {Bytes("probe")});
      return sub->TryReceive().has_value();
    }));
    for (int i = 0; i < kMessages; ++i) REQUIRE(Send(pub.get(), {InFrames::value_type(200'000)}) == SendResult::kSent);
    pub->SetLinger(seconds(60));
    std::thread closer([&] { pub.reset(); });
    CHECK(Eventually([&] { return Bind(context, LinkKind::kPub, address).has_value(); }));
    int received = 0;
    while (received < kMessages) {
      const std::optional<InFrames> frames = Receive(sub.get());
      if (!frames) break;
      if ((*frames)[0].size() == 200'000) ++received;
    }
    CHECK(received == kMessages);
    closer.join();
  }
}

TEST_CASE("a wake signal ends the wait, whether it came before or comes during it") {
  WakeSignal signal;
  REQUIRE(signal.fd() >= 0);
  signal.Wake();
  signal.Wake();
  WaitForInput({}, &signal, seconds(60));
  std::thread waker([&] { signal.Wake(); });
  WaitForInput({}, &signal, seconds(60));
  waker.join();
  WaitForInput({}, &signal, microseconds(1));  // nothing left: the time ends it
}

TEST_CASE("input on a link ends the wait, also input that is there already") {
  const auto context = ZmqContext::Create();
  const auto router = MustBind(context, LinkKind::kRouter, "tcp://127.0.0.1:0");
  const auto dealer = MustConnect(context, LinkKind::kDealer, router->endpoint());
  ZmqLink* const links[] = {router.get(), nullptr};
  REQUIRE(Send(dealer.get(), {Bytes("1")}) == SendResult::kSent);
  REQUIRE(Send(dealer.get(), {Bytes("2")}) == SendResult::kSent);
  std::size_t received = 0;
  while (received < 2) {
    WaitForInput(links, nullptr, seconds(60));
    while (router->TryReceive()) ++received;
  }
}

TEST_CASE("the shared context is one as long as somebody holds it") {
  auto first = ZmqContext::Shared();
  CHECK(first == ZmqContext::Shared());
  CHECK(first != ZmqContext::Create());
  first.reset();
  CHECK(ZmqContext::Shared()->handle() != nullptr);
}

}  // namespace
}  // namespace kvwire
