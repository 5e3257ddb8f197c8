// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/publish/factory.h"
#include "kv_events/publish/publish_queue.h"
#include "tests/support/own_loopback.h"
#include "tests/support/stream_support.h"

namespace kvwire::test {
namespace {

KVEventsConfig BindingConfig() {
  KVEventsConfig config;
  config.enable_kv_cache_events = true;
  config.endpoint = "tcp://" + OwnLoopback() + ":0";
  config.replay_endpoint = "tcp://" + OwnLoopback() + ":0";
  config.kvwire.mode = SocketMode::kBind;
  return config;
}

std::unique_ptr<EventPublisher> MustCreate(const PublisherOptions& options) {
  auto publisher = CreateEventPublisher(BindingConfig(), options);
  REQUIRE_MESSAGE(publisher.has_value(), publisher.error().message);
  return *std::move(publisher);
}

TEST_CASE("a number that the queue is told to refuse is burnt, as if the queue were full") {
  std::vector<SequenceNumber> asked;
  PublishQueue::Options options;
  options.refuse = [&asked](SequenceNumber number) {
    asked.push_back(number);
    return number == 1;
  };
  PublishQueue queue(options);
  std::vector<PublishResult> results;
  for (int i = 0; i < 3; ++i) {
    KVEventBatch batch = StoreBatch(1);
    results.push_back(queue.Push(&batch));
    CHECK(batch.empty());
  }
  CHECK(results == std::vector<PublishResult>{PublishResult::kAccepted, PublishResult::kDroppedQueueFull,
                                              PublishResult::kAccepted});
  CHECK(asked == Range(0, 2));
  CHECK(queue.stats().dropped_full == 1);
  CHECK(Balanced(queue.stats(), 3));
  std::vector<SequenceNumber> left;
  for (; queue.Front() != nullptr; queue.Finish(PublishQueue::Outcome::kSent)) left.push_back(queue.Front()->number);
  CHECK(left == std::vector<SequenceNumber>{0, 2});
}

// Spoils nothing; tells when it goes.
class WatchedLink final : public FrameLink {
 public:
  WatchedLink(FrameLink* inner, int* alive, int* sent) : inner_(inner), alive_(alive), sent_(sent) { ++*alive_; }
  ~WatchedLink() override {
    --*alive_;
    CHECK_FALSE(inner_->endpoint().empty());  // the socket is still there
  }
  SendResult TrySend(std::span<const OutFrame> frames) noexcept override {
    ++*sent_;
    return inner_->TrySend(frames);
  }
  std::optional<InFrames> TryReceive() override { return inner_->TryReceive(); }
  std::string endpoint() const override { return inner_->endpoint(); }

 private:
  FrameLink* const inner_;
  int* const alive_;
  int* const sent_;
};

TEST_CASE("everything that is published passes the link before the socket, which goes first at the close") {
  int alive = 0;
  int sent = 0;
  PublisherOptions options;
  options.context = ZmqContext::Create();
  options.decorate_publish = [&](FrameLink* socket) { return std::make_unique<WatchedLink>(socket, &alive, &sent); };
  const auto publisher = MustCreate(options);
  for (std::size_t i = 0; i < 5; ++i) CHECK(publisher->Publish(StoreBatch(1, i)) == PublishResult::kAccepted);
  CHECK(Eventually([&] { return publisher->stats().sent == 5; }));
  publisher->Close();
  CHECK(sent == 5);
  CHECK(alive == 0);
}

TEST_CASE("a successor has the earlier publisher's addresses, its own numbers and an empty replay") {
  PublisherOptions options;
  options.context = ZmqContext::Create();
  std::optional<EventSourceInfo> source;
  {
    const auto first = MustCreate(options);
    source = first->source();
    CHECK(first->Publish(StoreBatch(1)) == PublishResult::kAccepted);
    first->Close();
  }
  options.succession = PublisherSuccession{source, 40};
  const auto second = MustCreate(options);
  CHECK(second->source() == source);
  const auto dealer = ConnectTo(options.context, LinkKind::kDealer, *source->replay_endpoint);
  REQUIRE(Ask(dealer.get(), 0) == SendResult::kSent);
  CHECK(Numbers(ReadReplay(dealer.get())).empty());
  CHECK(second->Publish(StoreBatch(1)) == PublishResult::kAccepted);
  CHECK(Eventually([&] { return second->stats().sent == 1; }));
  REQUIRE(Ask(dealer.get(), 0) == SendResult::kSent);
  CHECK(Numbers(ReadReplay(dealer.get())) == Range(40, 40));
}

TEST_CASE("a first number that would reach the end mark is refused by name, value and range") {
  PublisherOptions options;
  options.succession = PublisherSuccession{std::nullopt, ~SequenceNumber{0}};
  const auto refused = CreateEventPublisher(BindingConfig(), options);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message == "first_number: 18446744073709551615; allowed: 0 to 9223372036854775807");
}

}  // namespace
}  // namespace kvwire::test
