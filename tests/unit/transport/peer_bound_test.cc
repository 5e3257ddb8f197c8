// SPDX-License-Identifier: Apache-2.0
#include "kv_events/transport/peer_bound.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <doctest/doctest.h>
#include <unistd.h>

#include "kv_events/transport/zmq_link.h"
#include "tests/support/stream_support.h"

namespace kvwire::test {
namespace {

std::unique_ptr<ZmqLink> BindPub(const std::shared_ptr<ZmqContext>& context, const std::string& text,
                                 const LinkOptions& options) {
  auto link = ZmqLink::Bind(context, LinkKind::kPub, *Endpoint::Parse(text, "endpoint"), options);
  REQUIRE(link.has_value());
  return *std::move(link);
}

std::unique_ptr<ZmqLink> Subscribe(const std::shared_ptr<ZmqContext>& context, const ZmqLink& pub, std::string topic) {
  LinkOptions options;
  options.subscription = std::move(topic);
  return ConnectTo(context, LinkKind::kSub, pub.endpoint(), options);
}

// Of each peer, and of all.
LinkOptions Limited(std::size_t peer_bytes, std::size_t total_bytes) {
  LinkOptions options;
  options.peer_limits = {peer_bytes, total_bytes};
  return options;
}

bool Hears(ZmqLink* pub, ZmqLink* sub, const std::string& topic) {
  const OutFrame frames[] = {OutFrame::Copy({reinterpret_cast<const std::uint8_t*>(topic.data()), topic.size()})};
  return Eventually([&] {
    pub->TryReceive();
    pub->TrySend(frames);
    return sub->TryReceive().has_value();
  });
}

TEST_CASE("J2: a subscriber that asks for more bytes than it may is disconnected, others stay") {
  const auto context = ZmqContext::Create();
  const std::string path = "/tmp/kvwire-test-greedy" + std::to_string(getpid());
  for (const std::string& text : {std::string("tcp://127.0.0.1:0"), "ipc://" + path}) {
    CAPTURE(text);
    const auto pub = BindPub(context, text, Limited(100, 0));
    const auto modest = Subscribe(context, *pub, "topic");
    CHECK(Hears(pub.get(), modest.get(), "topic"));
    CHECK(pub->cut_off() == 0);
    const auto greedy = Subscribe(context, *pub, std::string(100, 'x'));
    // It comes back again and again, each time that it is used.
    CHECK(Eventually([&] {
      pub->TryReceive();
      greedy->TryReceive();
      return pub->cut_off() > 2;
    }));
    CHECK(Hears(pub.get(), modest.get(), "topic"));
    const auto later = Subscribe(context, *pub, "");
    CHECK(Hears(pub.get(), later.get(), "topic"));
  }
}

TEST_CASE("J2: when all subscribers together ask for more than they may, the one that asks for most goes") {
  const auto context = ZmqContext::Create();
  LinkOptions limited = Limited(0, 250);
  limited.watch_peers = true;
  const auto pub = BindPub(context, "tcp://127.0.0.1:0", limited);
  const auto join = [&](std::size_t bytes) {
    auto sub = Subscribe(context, *pub, std::string(bytes, 'a'));
    CHECK(Hears(pub.get(), sub.get(), std::string(bytes, 'a')));
    return sub;
  };
  // What has gone does not count.
  for (int i = 0; i < 5; ++i) {
    join(120);
    REQUIRE(Eventually([&] { return pub->peers().present() == 0; }));
  }
  const auto first = join(60);
  auto most = join(120);
  CHECK(pub->cut_off() == 0);
  const auto last = Subscribe(context, *pub, std::string(70, 'a'));
  CHECK(Eventually([&] {
    pub->TryReceive();
    return pub->cut_off() > 0;
  }));
  most.reset();
  CHECK(Hears(pub.get(), first.get(), std::string(120, 'a')));
  CHECK(Hears(pub.get(), last.get(), std::string(120, 'a')));
  CHECK(pub->peers().present() == 2);
}

}  // namespace
}  // namespace kvwire::test
