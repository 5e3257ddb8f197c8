// SPDX-License-Identifier: Apache-2.0
// An engine and a consumer as processes, and a network between them that fails.
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/fault/stream_processes.h"
#include "tests/support/stream_support.h"

namespace kvwire::test {
namespace {

using Fault = TcpProxy::Fault;
using Replay = FrontTap::Replay;

using Words = std::vector<std::string>;

constexpr std::size_t kAmidst = TraceEngine::kStreamBytes / 4;

bool Happened(TcpProxy* proxy) {
  return Eventually([proxy] { return proxy->counts().faults == 1; });
}

std::string Label(Replay replay, Fault fault) {
  return std::string(replay == Replay::kOn ? "with" : "without") + " replay, fault " +
         std::to_string(static_cast<int>(fault));
}

using TraceStages = Stages<TraceEngine>;

TEST_CASE("C12: a stream whose connection breaks in the middle is healed by replay, and incomplete without one") {
  TraceStages stages;
  for (const Replay replay : {Replay::kOn, Replay::kOff}) {
    for (const Fault fault : {Fault::kClose, Fault::kRefuse}) {
      auto& stage = *stages.emplace_back(std::make_unique<Stage<TraceEngine>>(Label(replay, fault)));
      INFO(stage.label);
      stage.front.events.After(kAmidst, fault);
      stage.engine = std::make_unique<TraceEngine>(&stage.front, stage.dir, Words{"--wait-for-subscriber"});
      stage.tap = std::make_unique<FrontTap>(stage.front, stage.dir, replay);
      REQUIRE(Happened(&stage.front.events));
      stage.engine->Finish();
      stage.front.events.Resume();
    }
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    INFO(stages[i]->label);
    CHECK(stages[i]->tap->End() == (i < 2 ? FrontTap::kClean : FrontTap::kIncomplete));
    stages[i]->tap->CheckHonest(stages[i]->engine->state());
  }
}

TEST_CASE("J2: a reader that is held up loses what the publisher's pipe does not take, and replay brings it") {
  for (const Replay replay : {Replay::kOn, Replay::kOff}) {
    CAPTURE(replay);
    const TempDir dir;
    Front front;
    front.events.After(20'000, Fault::kStop);
    TraceEngine engine(&front, dir, {"--wait-for-subscriber"}, R"(, "hwm": 10)");
    FrontTap tap(front, dir, replay);
    REQUIRE(Happened(&front.events));
    engine.Finish();
    front.events.Resume();
    const int code = tap.End();
    const std::string state = engine.state();
    tap.CheckHonest(state);
    CHECK(code == (replay == Replay::kOn ? FrontTap::kClean : FrontTap::kIncomplete));
    if (replay == Replay::kOn) CHECK(tap.output().find(", healed 0,") == std::string::npos);
  }
}

TEST_CASE("J5: a network that passes nothing on and closes nothing is no end of the stream") {
  struct Way {
    const char* name;
    void (*do_to_replay)(TcpProxy*);
    int expected;
  };
  const Way ways[] = {
      {"the replay says what is missing", [](TcpProxy*) {}, FrontTap::kClean},
      {"the replay is stopped, too", [](TcpProxy* replay) { replay->Stop(); }, FrontTap::kIncomplete},
      {"the replay refuses", [](TcpProxy* replay) { replay->Refuse(); }, FrontTap::kIncomplete},
  };
  TraceStages stages;
  for (const Way& way : ways) {
    auto& stage = *stages.emplace_back(std::make_unique<Stage<TraceEngine>>(way.name));
    INFO(stage.label);
    stage.front.events.After(kAmidst, Fault::kStop);
    stage.engine = std::make_unique<TraceEngine>(&stage.front, stage.dir, Words{"--wait-for-subscriber"});
    stage.tap = std::make_unique<FrontTap>(stage.front, stage.dir, Replay::kOn);
    REQUIRE(Happened(&stage.front.events));
    way.do_to_replay(&stage.front.replay);
    stage.engine->Finish();
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    INFO(stages[i]->label);
    CHECK(stages[i]->tap->End() == ways[i].expected);
    stages[i]->tap->CheckHonest(stages[i]->engine->state());
  }
}

TEST_CASE(
    "C6: a replay that is cut off goes on where it stopped, and leaves the stream incomplete if it never comes back") {
  struct Cut {
    Fault fault;
    bool resumed;
  };
  const Cut cuts[] = {{Fault::kClose, true},
                      {Fault::kStop, true},
                      {Fault::kRefuse, true},
                      {Fault::kStop, false},
                      {Fault::kRefuse, false}};
  TraceStages stages;
  for (const Cut& cut : cuts) {
    auto& stage = *stages.emplace_back(std::make_unique<Stage<TraceEngine>>(Label(Replay::kOn, cut.fault)));
    INFO(stage.label);
    stage.engine = std::make_unique<TraceEngine>(&stage.front, stage.dir);
    stage.engine->Finish();
    stage.front.replay.After(kAmidst, cut.fault);
    stage.tap = std::make_unique<FrontTap>(stage.front, stage.dir, Replay::kOn);
    REQUIRE(Happened(&stage.front.replay));
    if (cut.resumed) stage.front.replay.Resume();
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    INFO(stages[i]->label);
    CHECK(stages[i]->tap->End() == (cuts[i].resumed ? FrontTap::kClean : FrontTap::kIncomplete));
    stages[i]->tap->CheckHonest(stages[i]->engine->state());
  }
}

TEST_CASE("C12: both connections break again and again, and the end is the engine's or not claimed") {
  for (const std::size_t step : {40'000U, 90'001U, 200'003U}) {
    CAPTURE(step);
    const TempDir dir;
    Front front;
    front.events.After(step, Fault::kClose);
    front.replay.After(step / 2, Fault::kClose);
    TraceEngine engine(&front, dir, {"--wait-for-subscriber", "--prefill-overhead-us", "500"});
    FrontTap tap(front, dir, Replay::kOn);
    std::size_t broken = 0;
    while (broken < 6 && tap.process()->ReadSome(10)) {
      for (TcpProxy* proxy : {&front.events, &front.replay}) {
        if (proxy->counts().faults <= broken / 2) continue;
        ++broken;
        proxy->After(step + broken, Fault::kClose);
      }
    }
    engine.Finish();
    tap.End();
    tap.CheckHonest(engine.state());
  }
}

TEST_CASE("J5: delays on the way change nothing") {
  const TempDir dir;
  Front front;
  front.events.Delay(std::chrono::milliseconds(50));
  front.replay.Delay(std::chrono::milliseconds(50));
  TraceEngine engine(&front, dir, {"--wait-for-subscriber"});
  FrontTap tap(front, dir, Replay::kOn);
  engine.Finish();
  CHECK(tap.End() == FrontTap::kClean);
  tap.CheckHonest(engine.state());
}

TEST_CASE("C19: a consumer that comes after the engine has published everything gets it") {
  for (const Replay replay : {Replay::kOn, Replay::kOff}) {
    CAPTURE(replay);
    const TempDir dir;
    Front front;
    TraceEngine engine(&front, dir);
    engine.Finish();
    FrontTap tap(front, dir, replay, "1");
    // Without a replay by the stream itself, which begins again for a new subscription.
    CHECK(tap.End() == FrontTap::kClean);
    tap.CheckHonest(engine.state());
  }
}

TEST_CASE("C9: a consumer that comes after the replay buffer has wrapped claims nothing") {
  const TempDir dir;
  Front front;
  TraceEngine engine(&front, dir, {}, R"(, "buffer_steps": 100)");
  engine.Finish();
  FrontTap tap(front, dir, Replay::kOn);
  tap.End();
  tap.CheckHonest(engine.state());
}

}  // namespace
}  // namespace kvwire::test
