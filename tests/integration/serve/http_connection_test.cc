// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/http_connection.h"

#include <array>
#include <chrono>
#include <string>
#include <string_view>

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kvwire::test {
namespace {

using engine::HttpConnection;

constexpr std::chrono::hours kLong(1);

// A connection and its client's end.
class Pair {
 public:
  explicit Pair(HttpConnection::Times times = {std::chrono::seconds(20), std::chrono::seconds(20)})
      : ends_(Make()), connection(ends_[0], times) {}
  ~Pair() { Leave(); }

  void Send(std::string_view text) const {
    REQUIRE(::send(ends_[1], text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
  }
  void EndSending() const { REQUIRE(::shutdown(ends_[1], SHUT_WR) == 0); }
  void Leave() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }

  std::string Read() {
    std::array<char, 64> bytes{};
    const ssize_t size = connection.Read(bytes.data(), bytes.size());
    return size > 0 ? std::string(bytes.data(), static_cast<std::size_t>(size)) : "";
  }

 private:
  static std::array<int, 2> Make() {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
    return ends;
  }

  std::array<int, 2> ends_;

 public:
  HttpConnection connection;
};

TEST_CASE("a connection without a request is given up when that is asked for, or its time is over") {
  Pair pair;
  int asked = 0;
  CHECK_FALSE(pair.connection.AwaitRequest(kLong, [&] { return ++asked == 3; }));
  CHECK(asked == 3);
  CHECK_FALSE(pair.connection.AwaitRequest(std::chrono::milliseconds(0), [] { return false; }));
  pair.Leave();
  CHECK_FALSE(pair.connection.AwaitRequest(kLong, [] { return false; }));
}

TEST_CASE("a connection that has sent bytes of a request is not given up, however late they come") {
  {
    // Before anybody waits.
    Pair pair;
    pair.Send("GET");
    CHECK(pair.connection.AwaitRequest(kLong, [] { return true; }));
    CHECK(pair.Read() == "GET");
  }
  {
    // Between the last look and the decision.
    Pair pair;
    CHECK(pair.connection.AwaitRequest(kLong, [&] {
      pair.Send("G");
      return true;
    }));
    CHECK(pair.Read() == "G");
  }
  {
    // With the time over.
    Pair pair;
    CHECK(pair.connection.AwaitRequest(std::chrono::milliseconds(0), [&] {
      pair.Send("G");
      return false;
    }));
    CHECK(pair.Read() == "G");
  }
  {
    // From a client that says nothing more.
    Pair pair;
    pair.Send("GET");
    pair.EndSending();
    CHECK(pair.connection.AwaitRequest(kLong, [] { return true; }));
    CHECK(pair.Read() == "GET");
  }
}

TEST_CASE("what was received with the last request is a request, whatever is asked for") {
  Pair pair;
  pair.Send("firstsecond");
  REQUIRE(pair.connection.AwaitRequest(kLong, [] { return false; }));
  std::array<char, 5> first{};
  REQUIRE(pair.connection.Read(first.data(), first.size()) == 5);
  CHECK(pair.connection.AwaitRequest(kLong, [] { return true; }));
  CHECK(pair.Read() == "second");
}

TEST_CASE("an empty line is no request, and one before a request is passed over") {
  Pair pair;
  pair.Send("\r\n\r\n");
  int asked = 0;
  CHECK_FALSE(pair.connection.AwaitRequest(kLong, [&] { return ++asked == 3; }));
  CHECK(asked == 3);
  CHECK(pair.connection.AwaitRequest(kLong, [&] {
    pair.Send("\r\nGET");
    return true;
  }));
  CHECK(pair.Read() == "GET");
}

TEST_CASE("what ended the reading is told") {
  const auto end_of = [](HttpConnection::Times times, std::string_view sent, auto then) {
    Pair pair(times);
    pair.Send("G");
    REQUIRE(pair.connection.AwaitRequest(kLong, [] { return false; }));
    pair.Send(sent);
    then(pair);
    while (!pair.Read().empty()) {
    }
    return pair.connection.end();
  };
  constexpr std::chrono::milliseconds kShort(20);
  const auto nothing = [](Pair&) {};
  CHECK(end_of({kLong, kLong}, "x", [](Pair& pair) { pair.Leave(); }) == HttpConnection::End::kClosed);
  CHECK(end_of({kShort, kLong}, "x", nothing) == HttpConnection::End::kTime);
  CHECK(end_of({kLong, kShort}, "x", nothing) == HttpConnection::End::kTime);
  CHECK(end_of({kLong, kLong}, std::string(HttpConnection::kMaxHeadBytes, 'x'), nothing) ==
        HttpConnection::End::kBytes);
}

}  // namespace
}  // namespace kvwire::test
