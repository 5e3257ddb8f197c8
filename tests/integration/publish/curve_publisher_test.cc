// SPDX-License-Identifier: Apache-2.0
// A publisher that is closed to strangers.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/publish/zmq_publisher.h"
#include "tests/support/key_files.h"
#include "tests/support/publisher_bench.h"

namespace kvwire::test {
namespace {

struct Closed {
  Closed() {
    config.kvwire.curve.secret_key_file = files.Write("publisher.key_secret", SecretCurveCertificate(publisher));
    config.kvwire.curve.allowed_keys_file = files.Write("allowed", consumer.public_key + " a router\n");
  }

  std::shared_ptr<const CurveClient> As(const CurveKeys& keys) const {
    return std::make_shared<const CurveClient>(CurveClient{keys, publisher.public_key});
  }

  std::string Refusal() const {
    const auto made = ZmqPublisher::Create(config, {});
    REQUIRE_FALSE(made.has_value());
    return made.error().message;
  }

  const KeyFiles files;
  const CurveKeys publisher = NewKeys();
  const CurveKeys consumer = NewKeys();
  KVEventsConfig config = LoopbackConfig();
};

bool Contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_CASE("J7: a consumer of the list gets live batches and replays; strangers get neither and are counted") {
  Closed closed;
  LogCapture log;
  PublisherOptions options;
  options.log = log.sink();
  PublisherBench bench(closed.config, options);
  const auto stranger = [&] {
    bench.curve = closed.As(NewKeys());
    return bench.Subscribe("test");
  }();
  const auto curious = bench.Dealer();
  bench.curve = nullptr;
  const auto open = bench.Subscribe("test");
  const auto asking = bench.Dealer();
  for (const auto* link : {&curious, &asking}) Ask(link->get(), 0);
  CHECK(Eventually([&] { return bench.publisher->stats().clients_denied >= 2; }));
  CHECK(Eventually([&] { return bench.publisher->stats().handshakes_failed >= 2; }));

  bench.curve = closed.As(closed.consumer);
  const auto subscriber = bench.Subscribe("test");
  const SequenceNumber next = Join(bench.publisher.get(), subscriber.get());
  static_cast<void>(bench.publisher->Publish(StoreBatch(5)));
  REQUIRE(ReadLive(subscriber.get(), 1).size() == 1);
  const auto dealer = bench.Dealer();
  Ask(dealer.get(), next);
  CHECK(Numbers(ReadReplay(dealer.get())) == Range(next, next));

  for (const auto* link : {&stranger, &curious, &open, &asking}) CHECK_FALSE((*link)->TryReceive());
  const PublisherStats stats = bench.publisher->stats();
  CHECK(stats.clients_admitted == 2);
  CHECK(stats.subscriptions == 1);
  CHECK(stats.replay_requests == 1);
  CHECK(log.Count(LogLevel::kWarning, "was turned away") == 1);
  CHECK(log.Count(LogLevel::kWarning, "does not speak CURVE") == 1);
}

TEST_CASE("J7: keys without a word of who may connect are refused, and so are files that cannot be read") {
  Closed closed;
  closed.config.kvwire.curve.allowed_keys_file = "";
  CHECK(Contains(closed.Refusal(), "kvwire.curve: it is not said who may connect; allowed: allowed_keys_file"));
  closed.config.kvwire.curve.allowed_keys_file = "/nowhere/list";
  CHECK(Contains(closed.Refusal(), "kvwire.curve.allowed_keys_file: \"/nowhere/list\": No such file"));
  closed.config.kvwire.curve.allow_any = true;
  closed.config.kvwire.curve.secret_key_file = "/nowhere/key";
  CHECK(Contains(closed.Refusal(), "kvwire.curve.secret_key_file: \"/nowhere/key\": No such file"));
}

TEST_CASE("J7: a publisher that connects needs the subscriber's public key, and speaks to no other") {
  Closed closed;
  closed.config.kvwire.mode = SocketMode::kConnect;
  closed.config.replay_endpoint.reset();
  closed.config.endpoint = "ipc:///tmp/kvwire-nobody";
  CHECK(Contains(closed.Refusal(), "kvwire.curve.server_key_file: missing; a publisher that connects needs"));
  const CurveKeys gateway = NewKeys();
  LinkOptions binding;
  binding.subscription = "test";
  binding.curve_server =
      std::make_shared<const CurveServer>(CurveServer{gateway.secret_key, std::make_shared<AnyCurveClient>()});
  const auto context = ZmqContext::Create();
  auto subscriber = ZmqLink::Bind(context, LinkKind::kSub, *Endpoint::Parse("tcp://127.0.0.1:0", "endpoint"), binding);
  REQUIRE(subscriber.has_value());
  closed.config.endpoint = (*subscriber)->endpoint();
  closed.config.kvwire.curve.server_key_file = closed.files.Write("gateway.key", PublicCurveCertificate(gateway));
  const PublisherBench bench(closed.config);
  Join(bench.publisher.get(), subscriber->get());
  static_cast<void>(bench.publisher->Publish(StoreBatch(1)));
  CHECK(ReadLive(subscriber->get(), 1).size() == 1);
}

TEST_CASE("L1: a closed publisher on every interface is no cause for a warning") {
  Closed closed;
  closed.config.endpoint = "tcp://*:0";
  closed.config.replay_endpoint = "tcp://*:0";
  LogCapture log;
  PublisherOptions options;
  options.log = log.sink();
  const PublisherBench bench(closed.config, options);
  CHECK(log.Count(LogLevel::kWarning, "") == 0);
}

}  // namespace
}  // namespace kvwire::test
