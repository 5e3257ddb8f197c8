// SPDX-License-Identifier: Apache-2.0
#include "kv_events/transport/endpoint.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/escape_text.h"

namespace kvwire {
namespace {

KVEventsConfig Config(std::string endpoint, std::optional<std::string> replay = std::nullopt,
                      SocketMode mode = SocketMode::kAuto) {
  KVEventsConfig config;
  config.enable_kv_cache_events = true;
  config.endpoint = std::move(endpoint);
  config.replay_endpoint = std::move(replay);
  config.kvwire.mode = mode;
  return config;
}

std::string Ranked(std::string_view text, std::int64_t rank, std::int64_t dp_size) {
  const Result<Endpoint> base = Endpoint::Parse(text, "endpoint");
  REQUIRE(base);
  const Result<Endpoint> ranked = EndpointForRank(*base, "endpoint", rank, dp_size);
  return ranked ? ranked->ToString() : ranked.error().message;
}

std::string Refusal(std::string_view text) {
  const Result<Endpoint> endpoint = Endpoint::Parse(text, "replay_endpoint");
  return endpoint ? "accepted" : endpoint.error().message;
}

bool Contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_CASE("an address is read and written back") {
  for (const std::string text :
       {"tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://127.0.0.1:0", "tcp://[::1]:5557", "tcp://[fe80::1]:65535",
        "tcp://host.example:1", "tcp://inproc-host:5557", "ipc:///tmp/tcp.sock", "ipc://@abstract", "ipc://*",
        "inproc://a b", "inproc://ipc:9"}) {
    CAPTURE(text);
    const Result<Endpoint> endpoint = Endpoint::Parse(text, "endpoint");
    REQUIRE(endpoint);
    CHECK(endpoint->ToString() == text);
  }
  const Result<Endpoint> any_port = Endpoint::Parse("tcp://*:*", "endpoint");
  REQUIRE(any_port);
  CHECK(*any_port->port == 0);
  CHECK(any_port->ToString() == "tcp://*:0");
}

TEST_CASE("a refused address names the setting, the value, the reason and what is allowed") {
  const std::pair<std::string, std::string> cases[] = {
      {"", "is empty"},
      {"udp://*:1", "scheme"},
      {"TCP://*:5557", "lower case"},
      {"tcp:/*:5557", "scheme"},
      {"*:5557", "scheme"},
      {"tcp://", "port is missing"},
      {"tcp://host", "port is missing"},
      {"tcp://[::1]", "port is missing"},
      {"tcp://host:", "port is missing"},
      {"tcp://:5557", "host is empty"},
      {"tcp://*:abc", "\"abc\" is not a number"},
      {"tcp://*:-1", "\"-1\" is not a number"},
      {"tcp://*:+1", "\"+1\" is not a number"},
      {"tcp://*:55 57", "\"55 57\" is not a number"},
      {"tcp://*:5557_dp1", "is not a number"},
      {"tcp://*:70000", "above 65535"},
      {"tcp://*:99999999999999999999", "above 65535"},
      {"tcp://::1:5557", "brackets"},
      {"tcp://[::1:5557", "brackets"},
      {"tcp://[]:5557", "brackets"},
      {"tcp://a b:5557", "not allowed"},
      {"tcp://a/b:5557", "not allowed"},
      {"ipc://", "path is empty"},
      {"inproc://", "name is empty"},
      {std::string("inproc://a\0b", 12), "control character"},
      {"ipc://" + std::string(108, 'x'), "longer than 107"},
  };
  for (const auto& c : cases) {
    const std::string& text = c.first;
    const std::string& reason = c.second;
    CAPTURE(text);
    const std::string message = Refusal(text);
    CHECK(Contains(message, "replay_endpoint"));
    CHECK(Contains(message, "\"" + EscapeText(text) + "\""));
    CHECK(Contains(message, reason));
    CHECK(Contains(message, "tcp://HOST:PORT, ipc://PATH or inproc://NAME"));
  }
  CHECK(Refusal("ipc://" + std::string(107, 'x')) == "accepted");
}

TEST_CASE("a rank moves the port, or adds a suffix to path and name") {
  CHECK(Ranked("tcp://*:5557", 3, 4) == "tcp://*:5560");
  CHECK(Ranked("tcp://*:5557", 0, 4) == "tcp://*:5557");
  CHECK(Ranked("tcp://[::1]:5557", 1, 2) == "tcp://[::1]:5558");
  CHECK(Ranked("tcp://*:0", 2, 4) == "tcp://*:0");
  CHECK(Ranked("tcp://*:*", 2, 4) == "tcp://*:0");
  CHECK(Ranked("tcp://inproc-host:5557", 1, 2) == "tcp://inproc-host:5558");
  CHECK(Ranked("inproc://a", 0, 3) == "inproc://a");
  CHECK(Ranked("inproc://a", 2, 3) == "inproc://a_dp2");
  CHECK(Ranked("ipc:///tmp/tcp.sock", 1, 2) == "ipc:///tmp/tcp.sock_dp1");
  CHECK(Ranked("ipc://*", 1, 2) == "ipc://*");
}

TEST_CASE("a rank outside the data-parallel group is refused") {
  const Endpoint base = *Endpoint::Parse("tcp://*:5557", "endpoint");
  for (const auto& c : std::vector<std::pair<std::int64_t, std::int64_t>>{{-1, 2}, {2, 2}, {0, 0}, {0, -3}}) {
    const std::int64_t rank = c.first;
    const std::int64_t size = c.second;
    CAPTURE(rank);
    CAPTURE(size);
    const Result<Endpoint> ranked = EndpointForRank(base, "endpoint", rank, size);
    REQUIRE_FALSE(ranked);
    CHECK(ranked.error().code == ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("B1: whether a publishing socket binds follows its spelling, and the mode wins") {
  const std::pair<std::string, bool> cases[] = {
      {"tcp://*:5557", true},         {"tcp://[::]:5557", true},
      {"tcp://0.0.0.0:5557", true},   {"tcp://10.0.0.7:5557", false},
      {"tcp://host:5557", false},     {"tcp://127.0.0.1:5557", false},
      {"tcp://[fe80::1]:5557", true}, {"ipc:///tmp/x", true},
      {"inproc://a", true},           {"tcp://[1:2:3:4:5:6:7:8]:1", false},
  };
  for (const auto& c : cases) {
    const std::string& text = c.first;
    const bool binds = c.second;
    CAPTURE(text);
    const Endpoint endpoint = *Endpoint::Parse(text, "endpoint");
    CHECK(Binds(endpoint, SocketMode::kAuto) == binds);
    CHECK(Binds(endpoint, SocketMode::kBind));
    CHECK_FALSE(Binds(endpoint, SocketMode::kConnect));
  }
}

TEST_CASE("B1: a connecting socket needs an address that can be dialled") {
  for (const std::string text : {"tcp://*:5557", "tcp://10.0.0.7:0", "ipc://*"}) {
    CAPTURE(text);
    CHECK_FALSE(EndpointsForRank(Config(text, std::nullopt, SocketMode::kConnect), 0, 1));
  }
  CHECK(EndpointsForRank(Config("tcp://[::]:5557", std::nullopt, SocketMode::kConnect), 0, 1));
}

TEST_CASE("B4: port ranges that overlap over the ranks are refused on every rank") {
  struct Case {
    std::string endpoint;
    std::string replay;
    std::int64_t dp_size;
    bool accepted;
  };
  const Case cases[] = {
      {"tcp://*:5557", "tcp://*:5558", 2, false},
      {"tcp://*:5558", "tcp://*:5557", 2, false},
      {"tcp://*:5557", "tcp://*:5558", 1, true},
      {"tcp://*:5557", "tcp://*:5559", 2, true},
      {"tcp://*:5557", "tcp://*:5564", 8, false},
      {"tcp://*:5557", "tcp://*:5565", 8, true},
      {"tcp://*:5557", "tcp://*:5557", 1, false},
      {"tcp://*:5557", "tcp://0.0.0.0:5558", 2, false},
      {"tcp://*:5557", "tcp://127.0.0.1:5558", 2, false},
      {"tcp://0.0.0.0:5557", "tcp://10.0.0.7:5558", 2, false},
      {"tcp://*:0", "tcp://*:0", 8, true},
      {"tcp://*:5557", "tcp://*:0", 8, true},
      // Connecting sockets: another machine's port is not ours, our own is.
      {"tcp://10.0.0.7:5557", "tcp://*:5558", 2, true},
      {"tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558", 2, false},
      {"tcp://127.0.0.1:5557", "tcp://*:5558", 2, false},
      // Names.
      {"inproc://a", "inproc://a", 1, false},
      {"inproc://a", "inproc://a_dp1", 2, false},
      {"inproc://a_dp1", "inproc://a", 2, false},
      {"inproc://a", "inproc://a_dp1", 1, true},
      {"inproc://a", "inproc://a_dp10", 10, true},
      {"inproc://a", "inproc://a_dp10", 11, false},
      {"ipc:///tmp/a", "inproc:///tmp/a", 2, true},
      {"ipc://*", "ipc://*", 2, true},
  };
  for (const Case& c : cases) {
    for (std::int64_t rank = 0; rank < c.dp_size; ++rank) {
      CAPTURE(c.endpoint);
      CAPTURE(c.replay);
      CAPTURE(rank);
      const Result<RankEndpoints> endpoints = EndpointsForRank(Config(c.endpoint, c.replay), rank, c.dp_size);
      CHECK(endpoints.has_value() == c.accepted);
      if (!endpoints) CHECK(endpoints.error().code == ErrorCode::kInvalidArgument);
    }
  }
}

TEST_CASE("B4: a port that passes 65535 for any rank is refused on every rank") {
  for (std::int64_t rank : {0, 1, 7}) {
    CAPTURE(rank);
    CHECK_FALSE(EndpointsForRank(Config("tcp://*:65529"), rank, 8));
    CHECK(EndpointsForRank(Config("tcp://*:65528"), rank, 8));
    CHECK_FALSE(EndpointsForRank(Config("tcp://*:5557", "tcp://*:65529"), rank, 8));
  }
  CHECK(EndpointsForRank(Config("tcp://*:65535"), 0, 1));
  CHECK(Contains(Ranked("tcp://*:65535", 0, 2), "65536"));
}

TEST_CASE("B6: every rank gives the same verdict on the same address") {
  const std::pair<std::string, bool> cases[] = {
      {"tcp://*", false},
      {"tcp://*:abc", false},
      {"tcp://*:70000", false},
      {"", false},
      {"udp://*:1", false},
      {"ipc:///tmp/x", true},
      {"ipc:///tmp/tcp:9", true},
      {"inproc://a", true},
      {"tcp://*:0", true},
      {"tcp://*:65535", false},
      {"ipc://" + std::string(104, 'x'), false},
  };
  for (const auto& c : cases) {
    const std::string& text = c.first;
    const bool accepted = c.second;
    for (std::int64_t rank : {0, 1, 7}) {
      CAPTURE(text);
      CAPTURE(rank);
      const Result<RankEndpoints> as_endpoint = EndpointsForRank(Config(text), rank, 8);
      const Result<RankEndpoints> as_replay = EndpointsForRank(Config("tcp://*:1000", text), rank, 8);
      CHECK(as_endpoint.has_value() == accepted);
      CHECK(as_replay.has_value() == accepted);
      if (!as_endpoint) CHECK(as_endpoint.error() == EndpointsForRank(Config(text), 3, 8).error());
    }
  }
}

TEST_CASE("both addresses of a rank are offset alike") {
  const Result<RankEndpoints> endpoints = EndpointsForRank(Config("tcp://*:5557", "tcp://*:5657"), 1, 2);
  REQUIRE(endpoints);
  CHECK(endpoints->publish.ToString() == "tcp://*:5558");
  REQUIRE(endpoints->replay);
  CHECK(endpoints->replay->ToString() == "tcp://*:5658");
}

}  // namespace
}  // namespace kvwire
