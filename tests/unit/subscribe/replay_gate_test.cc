// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/replay_gate.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "tests/unit/subscribe/event_stream_rig.h"

namespace kvwire::test {
namespace {

using Places = std::vector<std::unique_ptr<ReplayGate::Place>>;

Places NewPlaces(const std::shared_ptr<ReplayGate>& gate, std::size_t count) {
  Places places;
  for (std::size_t i = 0; i < count; ++i) places.push_back(std::make_unique<ReplayGate::Place>(gate));
  return places;
}

TEST_CASE("C6: a gate admits so many places at once, and the others in the order in which they came") {
  const auto gate = std::make_shared<ReplayGate>(2);
  Places places = NewPlaces(gate, 5);
  for (std::size_t i = 0; i < places.size(); ++i) CHECK(places[i]->Enter() == (i < 2));
  CHECK(gate->inside() == 2);
  CHECK(gate->queued() == 3);
  places[1]->Leave();
  CHECK_FALSE(places[4]->Enter());
  CHECK_FALSE(places[3]->Enter());
  CHECK(places[2]->Enter());
  SUBCASE("one that leaves and comes again is the last") {
    CHECK_FALSE(places[1]->Enter());
    places[0]->Leave();
    places[2]->Leave();
    CHECK(places[3]->Enter());
    CHECK(places[4]->Enter());
    CHECK_FALSE(places[1]->Enter());
  }
  SUBCASE("one that is destroyed leaves, from the queue, too") {
    places[3].reset();
    places[0].reset();
    CHECK(places[4]->Enter());
    CHECK(gate->queued() == 0);
  }
}

TEST_CASE("C6: a gate is used by many threads") {
  const auto gate = std::make_shared<ReplayGate>(3);
  std::atomic<int> inside{0};
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      ReplayGate::Place place(gate);
      for (int turn = 0; turn < 200; ++turn) {
        while (!place.Enter()) std::this_thread::yield();
        if (inside.fetch_add(1) >= 3) exceeded = true;
        inside.fetch_sub(1);
        place.Leave();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(exceeded);
  CHECK(gate->inside() == 0);
}

TEST_CASE("C6: of a hundred streams that begin together at most eight ask at the same time, and all are served") {
  const auto gate = std::make_shared<ReplayGate>();
  EventStreamOptions options;
  std::vector<std::unique_ptr<Rig>> rigs;
  for (int i = 0; i < 100; ++i) {
    rigs.push_back(std::make_unique<Rig>());
    Rig& rig = *rigs.back();
    options.gate = gate;
    rig.stream = std::make_unique<EventStream>(
        std::make_unique<ScriptedLink>(rig.live), [&rig] { return rig.NewAttempt(); }, options, &rig.sink);
    rig.live->inbox.push_back(Live(2));
  }
  std::size_t healed = 0;
  std::size_t most = 0;
  while (healed < rigs.size()) {
    std::size_t in_flight = 0;
    for (const auto& rig : rigs) {
      rig->Work();
      if (rig->stream->links()[1] != nullptr) ++in_flight;
    }
    REQUIRE(in_flight > 0);
    most = std::max(most, in_flight);
    for (const auto& rig : rigs) {
      if (rig->stream->links()[1] == nullptr) continue;
      rig->Answer({ReplayWithTopic(0), ReplayWithTopic(1), EndWithTopic()});
      rig->Work();
      healed += rig->stream->next() == 3 ? 1 : 0;
    }
  }
  CHECK(most == ReplayGate::kDefaultCapacity);
  CHECK(gate->inside() == 0);
}

}  // namespace
}  // namespace kvwire::test
