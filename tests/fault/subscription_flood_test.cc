// SPDX-License-Identifier: Apache-2.0
// J2: subscribers that ask for what there is not, without end.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kv_events/transport/endpoint.h"
#include "tests/support/publisher_bench.h"

namespace kvwire::test {
namespace {

// A subscriber of ZMTP 3.0 that remembers nothing of what it asked for.
class RawSubscriber {
 public:
  explicit RawSubscriber(const std::string& endpoint) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(*Endpoint::Parse(endpoint, "endpoint")->port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    using std::string_literals::operator""s;
    Say("\xff\0\0\0\0\0\0\0\0\x7f\3\0NULL"s + std::string(48, '\0'));
    Skip(64);
    const std::string ready = "\5READY\13Socket-Type\0\0\0\3SUB"s;
    Say("\4"s + static_cast<char>(ready.size()) + ready);
    Skip(ready.size() + 2);  // at least; what follows a handshake too early is an error
  }
  RawSubscriber(const RawSubscriber&) = delete;
  RawSubscriber& operator=(const RawSubscriber&) = delete;
  ~RawSubscriber() { close(fd_); }

  void Subscribe(const std::string& topic) { Tell('\1', topic); }
  void Unsubscribe(const std::string& topic) { Tell('\0', topic); }
  // Whether the other end has closed.
  bool ended() const { return ended_; }

 private:
  void Tell(char what, const std::string& topic) {
    REQUIRE(topic.size() < 255);
    Say(std::string(1, '\0') + static_cast<char>(topic.size() + 1) + what + topic);
  }
  void Say(std::string_view bytes) {
    while (!ended_ && !bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        ended_ = true;
      } else {
        bytes.remove_prefix(static_cast<std::size_t>(sent));
      }
    }
  }

  void Skip(std::size_t bytes) const {
    std::string heard(bytes, '\0');
    REQUIRE(recv(fd_, heard.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes));
  }

  const int fd_;
  bool ended_ = false;
};

class RandomTopics {
 public:
  std::string Next() {
    std::string topic(200, 'x');
    for (char& c : topic) c = static_cast<char>(random_());
    return topic;
  }

 private:
  std::mt19937 random_{1};
};

TEST_CASE("J2: whoever subscribes to topics without end is disconnected, and the stream and its readers go on") {
  PublisherBench bench;
  const auto whole = bench.Subscribe("test");
  const auto prefix = bench.Subscribe("te");
  const auto all = bench.Subscribe("");
  SequenceNumber next = Join(bench.publisher.get(), whole.get());
  next = Join(bench.publisher.get(), prefix.get(), next);
  next = Join(bench.publisher.get(), all.get(), next);
  REQUIRE(Eventually([&] { return bench.publisher->stats().subscriptions == 3; }));
  RandomTopics topics;
  for (std::uint64_t flood = 1; flood <= 3; ++flood) {
    RawSubscriber stranger(bench.publisher->source()->endpoint);
    std::size_t asked = 0;
    for (; !stranger.ended() && asked < 1'000'000; ++asked) stranger.Subscribe(topics.Next());
    CHECK(stranger.ended());
    CHECK(Eventually([&] { return bench.publisher->stats().subscribers_cut == flood; }));
    CHECK(bench.publisher->stats().subscriptions == 3);
  }
  const auto later = bench.Subscribe("test");
  next = Join(bench.publisher.get(), later.get(), next);
  for (const auto* reader : {&whole, &prefix, &all}) {
    CHECK(Eventually([&] {
      const std::optional<Live> heard = ReceiveLive(reader->get());
      return heard && heard->number == next - 1;
    }));
  }
  CHECK(Eventually([&] { return bench.publisher->stats().subscriptions == 4; }));
  CHECK(bench.publisher->stats().subscribers_cut == 3);
}

TEST_CASE("J2: a subscriber of a thousand other topics beside ours is one subscriber, until it ends that") {
  PublisherBench bench;
  RawSubscriber subscriber(bench.publisher->source()->endpoint);
  RandomTopics topics;
  for (int i = 0; i < 1000; ++i) subscriber.Subscribe(topics.Next());
  subscriber.Subscribe("test");
  CHECK(Eventually([&] { return bench.publisher->stats().subscriptions == 1; }));
  subscriber.Unsubscribe("test");
  CHECK(Eventually([&] { return bench.publisher->stats().subscriptions == 0; }));
  subscriber.Subscribe("tes");
  CHECK(Eventually([&] { return bench.publisher->stats().subscriptions == 1; }));
  CHECK_FALSE(subscriber.ended());
  CHECK(bench.publisher->stats().subscribers_cut == 0);
}

TEST_CASE(
    "J8: a subscription far longer than any topic of ours ends its connection, one to our own long topic does not") {
  KVEventsConfig config = LoopbackConfig();
  config.topic = std::string(1000, 't');
  PublisherBench bench(config);
  const auto subscriber = bench.Subscribe(config.topic);
  Join(bench.publisher.get(), subscriber.get());
  const auto too_long = bench.Subscribe(std::string(1100, 't'));
  const auto later = bench.Subscribe("t");
  CHECK(Eventually([&] { return bench.publisher->stats().subscriptions == 2; }));
  Join(bench.publisher.get(), later.get(), bench.publisher->stats().submitted);
  CHECK_FALSE(too_long->TryReceive());
}

}  // namespace
}  // namespace kvwire::test
