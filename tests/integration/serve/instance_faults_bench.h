// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include "engine/serve/instance.h"
#include "kv_events/subscribe/event_stream.h"
#include "kv_events/subscribe/stream_checker.h"
#include "tests/integration/serve/instance_bench.h"
#include "tests/support/stream_support.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {

inline constexpr std::chrono::seconds kLong(20);

// What a consumer notices of a stream.
class Notes final : public StreamSink {
 public:
  Notes()
      : checker({Removals::kExact, 20, std::nullopt},
                [this](const Violation& violation) { violations.push_back(violation); }) {}

  void OnBatch(const StreamMessage& message, const DecodedBatch& batch) override {
    numbers.push_back(message.sequence);
    for (std::size_t i = 0; i < batch.batch.size(); ++i) {
      const auto event = batch.batch.at(i);
      if (const auto* stored = std::get_if<BlockStored>(&event)) {
        for (const BlockHash& hash : stored->block_hashes) stored_hashes.push_back(hash.Low64());
      } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
        for (const BlockHash& hash : removed->block_hashes) removed_hashes.push_back(hash.Low64());
      } else {
        ++clears;
      }
    }
    checker.OnBatch(message, batch);
  }
  void OnUndecodable(const StreamMessage& message, const DecodeError& error) override {
    numbers.push_back(message.sequence);
    checker.OnUndecodable(message, error);
  }
  void OnRecovery(SequenceNumber from, SequenceNumber to) override { checker.OnRecovery(from, to); }
  void OnHealed(SequenceNumber from, SequenceNumber to) override { checker.OnHealed(from, to); }
  void OnGap(const StreamGap& gap) override {
    gaps.push_back(gap);
    checker.OnGap(gap);
  }
  void OnRestart(SequenceNumber last, std::optional<SequenceNumber> first_seen) override {
    numbers.clear();
    ++restarts;
    checker.OnRestart(last, first_seen);
  }
  void OnContinuity(Continuity continuity) override {
    if (continuity == Continuity::kConfirmed) ++confirmations;
    checker.OnContinuity(continuity);
  }
  void OnMalformed(std::size_t frames) override { checker.OnMalformed(frames); }

  std::vector<SequenceNumber> numbers;  // of the present life
  std::vector<std::uint64_t> stored_hashes;
  std::vector<std::uint64_t> removed_hashes;
  int clears = 0;
  int restarts = 0;
  int confirmations = 0;
  std::vector<StreamGap> gaps;
  std::vector<Violation> violations;
  StreamChecker checker;
};

// The whole receiving end, over sockets of its own.
class Consumer {
 public:
  explicit Consumer(const EventSourceInfo& source) {
    LinkOptions live;
    live.watch_peers = true;
    const auto ask = [context = context_, address = *source.replay_endpoint]() -> std::unique_ptr<FrameLink> {
      return ConnectTo(context, LinkKind::kDealer, address);
    };
    stream_ = std::make_unique<EventStream>(ConnectTo(context_, LinkKind::kSub, source.endpoint, live), ask,
                                            EventStreamOptions(), &notes);
  }

  // Reads on until the condition holds; false when it does not in time.
  bool Until(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + kLong;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      if (stream_->DoWork(SystemClock::Get().Now()) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  bool UntilNumber(SequenceNumber last) {
    return Until([&] { return !notes.numbers.empty() && notes.numbers.back() >= last; });
  }
  // The publisher says that nothing is missing.
  bool Confirmed() {
    const int before = notes.confirmations;
    stream_->Confirm();
    return Until([&] { return notes.confirmations > before; });
  }
  EventStreamStats stats() const { return stream_->stats(); }

  Notes notes;

 private:
  const std::shared_ptr<ZmqContext> context_ = ZmqContext::Create();
  std::unique_ptr<EventStream> stream_;
};

// An instance and what a test does with it.
struct FaultsBench {
  explicit FaultsBench(engine::InstanceConfig config = SmallEngine())
      : egress(MustCreateEgress()), instance(MustCreate(std::move(config), egress.get())) {}

  void Script(const std::string& json, std::optional<std::uint32_t> rank = {}) {
    const auto script = engine::FaultScript::FromJson(json);
    REQUIRE_MESSAGE(script.has_value(), script.error().message);
    REQUIRE(instance->SetFaults(*script, rank).has_value());
  }

  engine::Admission Submit(scheduler::NewRequest request, std::optional<std::uint32_t> rank = 0) {
    return MustSubmit(instance.get(), std::move(request), rank);
  }

  // One batch each, of two new blocks, one after the other.
  void Batches(int count, std::uint32_t rank = 0) {
    for (int i = 0; i < count; ++i) {
      REQUIRE(Await(Submit(Request(8, 1, next_prompt), rank)).finished);
      next_prompt += 100;
    }
  }

  // A consumer that has joined: subscribed, and told that it has everything.
  std::unique_ptr<Consumer> Join(std::uint32_t rank = 0) {
    auto consumer = std::make_unique<Consumer>(instance->sources().at(rank));
    REQUIRE(consumer->Until(
        [&] { return instance->publisher_stats(rank).subscriptions == 1 && consumer->notes.confirmations > 0; }));
    return consumer;
  }

  std::uint64_t Count(engine::FaultKind kind, std::uint32_t rank = 0) const {
    return instance->fault_counters(rank).Of(kind);
  }

  const std::unique_ptr<engine::EgressThread> egress;
  const std::unique_ptr<engine::Instance> instance;
  TokenId next_prompt = 1000;
};

}  // namespace kvwire::test
