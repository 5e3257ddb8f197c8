// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/factory.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/own_loopback.h"
#include "tests/support/publisher_bench.h"
#include "tests/support/temp_dir.h"

extern char** environ;

namespace kvwire::test {
namespace {

using Made = Result<std::unique_ptr<EventPublisher>>;

bool BoundAndListening(int family, const sockaddr* address, socklen_t size) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool done = fd >= 0 && bind(fd, address, size) == 0 && listen(fd, 1) == 0;
  if (fd >= 0) close(fd);
  return done;
}

bool Contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_CASE("without events the publisher is the null one, which does nothing") {
  KVEventsConfig off;
  KVEventsConfig off_with_zmq;
  off_with_zmq.publisher = PublisherKind::kZmq;
  KVEventsConfig on_with_null;
  on_with_null.enable_kv_cache_events = true;
  on_with_null.publisher = PublisherKind::kNull;
  const std::pair<KVEventsConfig, std::size_t> cases[] = {{off, 0}, {off_with_zmq, 1}, {on_with_null, 1}};
  for (const auto& [config, warnings] : cases) {
    LogCapture log;
    PublisherOptions options;
    options.log = log.sink();
    options.data_parallel_rank = 5;  // of 1: not looked at
    const Made made = CreateEventPublisher(config, options);
    REQUIRE(made);
    CHECK(dynamic_cast<NullEventPublisher*>(made->get()) != nullptr);
    CHECK_FALSE((*made)->source());
    CHECK((*made)->Publish(StoreBatch(1)) == PublishResult::kAccepted);
    (*made)->Close();
    CHECK(log.Count(LogLevel::kWarning, "nothing is sent") == warnings);
  }
}

TEST_CASE("events without a named publisher mean ZeroMQ") {
  KVEventsConfig config = LoopbackConfig();
  REQUIRE_FALSE(config.publisher);
  const Made made = CreateEventPublisher(config, {});
  REQUIRE(made);
  CHECK(dynamic_cast<ZmqPublisher*>(made->get()) != nullptr);
  REQUIRE((*made)->source());
  CHECK((*made)->source()->endpoint.starts_with("tcp://127.0.0.1:"));
  CHECK_FALSE((*made)->source()->endpoint.ends_with(":0"));
}

TEST_CASE("rank 0 given and rank left out are the same") {
  PublisherOptions explicit_zero;
  explicit_zero.data_parallel_rank = 0;
  for (const PublisherOptions& options : {PublisherOptions(), explicit_zero}) {
    KVEventsConfig config = LoopbackConfig();
    config.endpoint = "inproc://same";
    config.replay_endpoint.reset();
    const Made made = CreateEventPublisher(config, options);
    REQUIRE(made);
    CHECK((*made)->source()->endpoint == "inproc://same");
    CHECK((*made)->source()->data_parallel_rank == 0);
    CHECK_FALSE((*made)->source()->replay_endpoint);
  }
}

TEST_CASE("B6: a wrong address fails alike on every rank") {
  const std::string wrong[] = {"tcp://*", "tcp://*:abc", "tcp://*:70000", "", "udp://*:1"};
  for (const std::string& text : wrong) {
    for (const std::int64_t rank : {0, 1, 7}) {
      CAPTURE(text);
      CAPTURE(rank);
      PublisherOptions options;
      options.data_parallel_rank = rank;
      options.dp_size = 8;
      KVEventsConfig config = LoopbackConfig();
      config.replay_endpoint = text;
      const Made made = CreateEventPublisher(config, options);
      REQUIRE_FALSE(made);
      CHECK(made.error().code == ErrorCode::kInvalidArgument);
      CHECK(Contains(made.error().message, "replay_endpoint"));
    }
  }
}

TEST_CASE("numbers that no parser saw are checked") {
  const auto refused = [](void (*change)(KVEventsConfig*)) {
    KVEventsConfig config = LoopbackConfig();
    change(&config);
    const Made made = CreateEventPublisher(config, {});
    return made ? std::string() : made.error().message;
  };
  CHECK(Contains(refused([](KVEventsConfig* c) { c->buffer_steps = -1; }), "buffer_steps: -1; allowed: 0 to"));
  CHECK(Contains(refused([](KVEventsConfig* c) { c->hwm = -1; }), "hwm: -1; allowed: 0 to 2147483647"));
  CHECK(Contains(refused([](KVEventsConfig* c) { c->max_queue_size = 0; }), "max_queue_size: 0; allowed: 1 to"));
  CHECK(Contains(refused([](KVEventsConfig* c) { c->kvwire.first_seq = 2; }), "first_seq: 2; allowed: 0 to 1"));
  CHECK(Contains(refused([](KVEventsConfig* c) { c->kvwire.first_seq = kEndOfReplay; }), "first_seq"));
  CHECK(Contains(refused([](KVEventsConfig* c) { c->kvwire.queue_bytes = 0; }), "queue_bytes"));
  CHECK(Contains(refused([](KVEventsConfig* c) { c->kvwire.buffer_bytes = -1; }), "buffer_bytes"));
  CHECK(Contains(refused([](KVEventsConfig* c) { c->kvwire.heartbeat_interval_ms = 9; }),
                 "heartbeat_interval_ms: 9; allowed: 10 to 3600000"));
  CHECK(Contains(refused([](KVEventsConfig* c) { c->kvwire.restart_guard_s = -1; }),
                 "restart_guard_s: -1; allowed: 0 to 3600"));
  CHECK(refused([](KVEventsConfig* c) {
          c->buffer_steps = 0;
          c->hwm = 0;
          c->max_queue_size = 2147483647;
        }).empty());
}

TEST_CASE("B3: a second publisher with the same ports fails, naming socket, address and reason") {
  PublisherBench first;
  const EventSourceInfo taken = first.publisher->source().value();
  KVEventsConfig same_publish = LoopbackConfig();
  same_publish.endpoint = taken.endpoint;
  KVEventsConfig same_replay = LoopbackConfig();
  same_replay.replay_endpoint = taken.replay_endpoint;
  const std::tuple<KVEventsConfig, std::string, std::string> cases[] = {
      {same_publish, "PUB socket (endpoint)", taken.endpoint},
      {same_replay, "ROUTER socket (replay_endpoint)", *taken.replay_endpoint}};
  for (const auto& [config, socket, address] : cases) {
    const Made second = CreateEventPublisher(config, {});
    REQUIRE_FALSE(second);
    CHECK(second.error().code == ErrorCode::kAddressInUse);
    CHECK(Contains(second.error().message, socket));
    CHECK(Contains(second.error().message, address));
    CHECK(Contains(second.error().message, "Address already in use"));
  }
}

// What a plain socket of the system says when it takes the address for itself.
bool PlainBind(const Endpoint& endpoint) {
  if (endpoint.scheme == Endpoint::Scheme::kIpc) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(endpoint.path.begin(), endpoint.path.end(), address.sun_path);
    unlink(endpoint.path.c_str());  // the file outlives its socket
    return BoundAndListening(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(endpoint.port.value()));
  return inet_pton(AF_INET, endpoint.host.c_str(), &address.sin_addr) == 1 &&
         BoundAndListening(AF_INET, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

TEST_CASE("B7: when the second socket cannot be bound, the first address is free again") {
  const PublisherBench holder;
  const std::string taken = holder.publisher->source()->replay_endpoint.value();
  const TempDir directory;
  // A port that the system chose at an address of this process: nobody else takes it when it is free.
  std::string own;
  {
    KVEventsConfig config = LoopbackConfig();
    config.endpoint = "tcp://" + OwnLoopback() + ":0";
    own = PublisherBench(config).publisher->source()->endpoint;
  }
  for (const std::string& address : {own, "ipc://" + (directory / "half"), std::string("inproc://half")}) {
    CAPTURE(address);
    KVEventsConfig config = LoopbackConfig();
    config.endpoint = address;
    config.replay_endpoint = taken;
    PublisherOptions options;
    options.context = holder.context;
    for (int i = 0; i < 3; ++i) {
      const Made half = CreateEventPublisher(config, options);
      REQUIRE_FALSE(half);
      // The second socket failed, not the first for what an earlier attempt left.
      CHECK(Contains(half.error().message, "ROUTER socket (replay_endpoint) " + taken));
    }
    const Endpoint endpoint = *Endpoint::Parse(address, "endpoint");
    if (endpoint.scheme != Endpoint::Scheme::kInproc) {
      CHECK(Eventually([&] { return PlainBind(endpoint); }));
    }
    config.replay_endpoint = "tcp://127.0.0.1:0";
    const Made whole = CreateEventPublisher(config, options);
    REQUIRE(whole);
    const auto subscriber = ConnectTo(holder.context, LinkKind::kSub, (*whole)->source()->endpoint);
    Join(whole->get(), subscriber.get());
    CHECK((*whole)->stats().subscriptions == 1);
  }
}

// Run by the test below in a process of its own.
TEST_CASE("the second process fails to bind" * doctest::skip()) {
  const char* endpoint = std::getenv("KVWIRE_TEST_TAKEN");
  REQUIRE(endpoint != nullptr);
  KVEventsConfig config = LoopbackConfig();
  config.endpoint = endpoint;
  const Made made = CreateEventPublisher(config, {});
  REQUIRE_FALSE(made);
  CHECK(made.error().code == ErrorCode::kAddressInUse);
  CHECK(Contains(made.error().message, endpoint));
}

TEST_CASE("B3: a second process with the same ports fails at start") {
  PublisherBench first;
  const std::string taken = first.publisher->source()->endpoint;
  setenv("KVWIRE_TEST_TAKEN", taken.c_str(), 1);
  std::string arguments[] = {"factory_test", "--no-skip", "--test-case=the second process fails to bind"};
  char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  pid_t child = 0;
  REQUIRE(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, argv, environ) == 0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace kvwire::test
