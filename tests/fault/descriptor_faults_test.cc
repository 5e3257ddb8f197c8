// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <string>
#include <string_view>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/descriptor_drought.h"
#include "tests/support/manual_clock.h"
#include "tests/support/publisher_bench.h"

namespace kvwire::test {
namespace {

using std::chrono::seconds;

constexpr std::string_view kRefusing = "cannot accept connections";
constexpr std::string_view kAccepting = "accepting connections again";

// A TCP connection that says nothing. The descriptor is there before the connection is asked for.
class IdleConnection {
 public:
  IdleConnection() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  IdleConnection(const IdleConnection&) = delete;
  IdleConnection& operator=(const IdleConnection&) = delete;
  ~IdleConnection() { close(fd_); }

  // The system completes the connection, whether or not the listener ever takes it.
  bool Open(const std::string& endpoint) const {
    const Result<Endpoint> parsed = Endpoint::Parse(endpoint, "endpoint");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(parsed->port.value()));
    return inet_pton(AF_INET, parsed->host.c_str(), &address.sin_addr) == 1 &&
           connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }

  // The listener took the connection: a ZeroMQ peer speaks first.
  bool Greeted() const {
    char byte = 0;
    return recv(fd_, &byte, 1, MSG_DONTWAIT) == 1;
  }

 private:
  const int fd_;
};

TEST_CASE("a publisher without descriptors says so once per episode, and goes on for those who are connected") {
  LogCapture log;
  ManualClock clock;
  PublisherOptions options;
  options.log = log.sink();
  options.clock = &clock;
  PublisherBench bench(LoopbackConfig(), options);
  const auto subscriber = bench.Subscribe("test");
  SequenceNumber next = Join(bench.publisher.get(), subscriber.get());
  CHECK(log.Count(LogLevel::kWarning, kRefusing) == 0);

  const EventSourceInfo source = bench.publisher->source().value();
  // All live to the end: a descriptor that comes free is one that the listener takes. The second episode has more, in
  // case the handshake time of the first one's runs out meanwhile.
  const IdleConnection idle[4];
  struct Episode {
    std::string endpoint;
    std::size_t begin = 0;  // of idle
    std::size_t end = 0;
  };
  const Episode cases[] = {{source.endpoint, 0, 1}, {source.replay_endpoint.value(), 1, 4}};
  std::size_t episodes = 0;
  for (const Episode& episode : cases) {
    CAPTURE(episode.endpoint);
    {
      const DescriptorDrought drought;
      for (std::size_t i = episode.begin; i < episode.end; ++i) REQUIRE(idle[i].Open(episode.endpoint));
      ++episodes;
      CHECK(Eventually([&] { return log.Count(LogLevel::kWarning, kRefusing) == episodes; }));
      CHECK(log.Count(LogLevel::kWarning, "out of file descriptors?") == episodes);
      // libzmq goes on trying, and it stays one episode. The clock stands still, so nothing can end it.
      for (int i = 0; i < 20; ++i, ++next) {
        REQUIRE(bench.publisher->Publish(StoreBatch(1)) == PublishResult::kAccepted);
        CHECK(Numbers(ReadLive(subscriber.get(), 1)) == Range(next, next));
      }
      CHECK(log.Count(LogLevel::kWarning, kRefusing) == episodes);
      CHECK(log.Count(LogLevel::kInfo, kAccepting) == episodes - 1);
    }
    for (std::size_t i = episode.begin; i < episode.end; ++i) REQUIRE(Eventually([&] { return idle[i].Greeted(); }));
    CHECK(Eventually([&] {
      clock.Advance(seconds(1));
      return log.Count(LogLevel::kInfo, kAccepting) == episodes;
    }));
  }
  // Newcomers are served again.
  const auto late = bench.Subscribe("test");
  next = Join(bench.publisher.get(), late.get(), next);
  CHECK(Balanced(bench.publisher->stats(), next));
  CHECK(log.Count(LogLevel::kWarning, kRefusing) == episodes);
}

TEST_CASE("J4: a publisher for which descriptors are too few is refused by the limit's name, and the process goes on") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  std::size_t refused = 0;
  bool made = false;
  // From enough of them down to one: a sanitizer needs some itself for what it has not seen yet.
  for (rlim_t few = 64; few > 0; --few) {
    CAPTURE(few);
    rlimit low = before;
    low.rlim_cur = few;
    setrlimit(RLIMIT_NOFILE, &low);
    PublisherOptions options;
    options.context = ZmqContext::Create();
    const auto publisher = ZmqPublisher::Create(LoopbackConfig(), options);
    setrlimit(RLIMIT_NOFILE, &before);
    if (publisher) {
      made = true;
      continue;
    }
    ++refused;
    CHECK(publisher.error().code == ErrorCode::kUnavailable);
    CHECK_MESSAGE(publisher.error().message.find("ulimit -n") != std::string::npos, publisher.error().message);
  }
  CHECK(refused > 0);
  CHECK(made);
}

}  // namespace
}  // namespace kvwire::test
