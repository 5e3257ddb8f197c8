// SPDX-License-Identifier: Apache-2.0
// Engines and consumers as processes that are killed, started again and stopped for a while.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <httplib.h>
#include <nlohmann/json.hpp>
#include <signal.h>

#include "kv_events/subscribe/held_blocks.h"
#include "kv_events/subscribe/recording.h"
#include "kv_events/wire/encoder.h"
#include "tests/fault/stream_processes.h"
#include "tests/support/stream_support.h"

namespace kvwire::test {
namespace {

using Replay = FrontTap::Replay;

// How tap prints a message's number.
std::string Shown(SequenceNumber number) { return fmt::format("{:>6}  ", number); }

std::string DumpOf(const HeldBlocks& held) {
  std::string lines;
  held.Dump([&lines](std::string_view line) { lines += std::string(line) + '\n'; });
  return lines;
}

// A life of a publisher that stores a block with each message, as a recording that is played behind a front.
class Life {
 public:
  Life(const TempDir& dir, const std::string& name, SequenceNumber first, SequenceNumber last, std::uint64_t hash)
      : file_(dir / name), last_(last) {
    auto writer = RecordingWriter::Create(file_);
    REQUIRE(writer.has_value());
    const BatchEncoder encoder{KVEventsConfig::Extensions()};
    HeldBlocks held;
    for (SequenceNumber number = first; number <= last; ++number) {
      const KVEventBatch batch = StoreBatch(1, hash + number);
      held.Apply(batch);
      std::vector<std::uint8_t> payload;
      encoder.Encode(batch, &payload);
      REQUIRE((*writer)->Append(1, number, "kv", payload).has_value());
    }
    REQUIRE((*writer)->Close().has_value());
    state_ = DumpOf(held);
  }

  std::unique_ptr<ChildProcess> Play(Front* front, std::vector<std::string> more = {}) const {
    std::vector<std::string> words{
        KVWIRE_BINARY,       "play",     file_, "--endpoint", "tcp://127.0.0.1:0", "--replay-endpoint",
        "tcp://127.0.0.1:0", "--linger", "100"};
    words.insert(words.end(), more.begin(), more.end());
    auto process = StartLogged(std::move(words));
    REQUIRE(process->WaitFor("playing at "));
    REQUIRE(process->WaitFor("\n"));
    front->PointTo(PortAfter(process->output(), "playing at "), PortAfter(process->output(), "replay at "));
    return process;
  }
  const std::string& state() const { return state_; }
  SequenceNumber last() const { return last_; }

 private:
  const std::string file_;
  const SequenceNumber last_;
  std::string state_;
};

void Kill(ChildProcess* process) {
  process->Signal(SIGKILL);
  CHECK(process->Wait() == -1);
}

using PlayStages = Stages<ChildProcess>;

struct SecondLife {
  const char* name;
  SequenceNumber first;
  SequenceNumber last;
};

TEST_CASE("C13, C14: after kill -9 and a restart at any number nothing of the old life is claimed") {
  const SecondLife lives[] = {{"below the old number", 0, 4},
                              {"up to the old number", 0, 9},
                              {"past the old number", 0, 19},
                              {"exactly what is expected next", 10, 19},
                              {"a gap above what is expected", 15, 25}};
  for (const Replay replay : {Replay::kOn, Replay::kOff}) {
    CAPTURE(replay);
    PlayStages stages;
    std::vector<std::string> states;
    for (const SecondLife& life : lives) {
      auto& stage = *stages.emplace_back(std::make_unique<Stage<ChildProcess>>(life.name));
      INFO(stage.label);
      const Life first(stage.dir, "first", 0, 9, 1);
      const Life second(stage.dir, "second", life.first, life.last, 1000);
      stage.tap = std::make_unique<FrontTap>(stage.front, stage.dir, replay);
      stage.engine = first.Play(&stage.front, {"--wait-for-subscriber"});
      REQUIRE(stage.tap->process()->WaitFor(Shown(first.last())));
      Kill(stage.engine.get());
      stage.engine = second.Play(&stage.front);
      // A life that is only known from its middle is never complete.
      states.push_back(life.first == 0 ? second.state() : "unknown");
    }
    for (std::size_t i = 0; i < stages.size(); ++i) {
      INFO(stages[i]->label);
      const int code = stages[i]->tap->End();
      stages[i]->tap->CheckHonest(states[i]);
      if (replay == Replay::kOn && lives[i].first == 0) CHECK(code == FrontTap::kClean);
    }
  }
}

TEST_CASE(
    "C14: a consumer that was stopped while the publisher was killed and came back claims nothing of the old life") {
  for (const Replay replay : {Replay::kOn, Replay::kOff}) {
    CAPTURE(replay);
    PlayStages stages;
    std::vector<std::string> states;
    for (const SequenceNumber last : {4U, 9U, 19U}) {
      auto& stage = *stages.emplace_back(std::make_unique<Stage<ChildProcess>>("up to " + std::to_string(last)));
      INFO(stage.label);
      const Life first(stage.dir, "first", 0, 9, 1);
      const Life second(stage.dir, "second", 0, last, 1000);
      stage.tap = std::make_unique<FrontTap>(stage.front, stage.dir, replay);
      stage.engine = first.Play(&stage.front, {"--wait-for-subscriber"});
      REQUIRE(stage.tap->process()->WaitFor(Shown(first.last())));
      stage.tap->process()->Signal(SIGSTOP);
      Kill(stage.engine.get());
      stage.engine = second.Play(&stage.front);
      stage.tap->process()->Signal(SIGCONT);
      states.push_back(second.state());
    }
    for (std::size_t i = 0; i < stages.size(); ++i) {
      INFO(stages[i]->label);
      const int code = stages[i]->tap->End();
      stages[i]->tap->CheckHonest(states[i]);
      if (replay == Replay::kOn) CHECK(code == FrontTap::kClean);
    }
  }
}

TEST_CASE("C21: a consumer finds a publisher that is absent, comes, goes and comes back, each time without help") {
  const TempDir dir;
  Front front;
  front.events.Refuse();
  front.replay.Refuse();
  FrontTap tap(front, dir, Replay::kOn);
  CHECK(tap.process()->WaitFor("connecting to"));
  const Life lives[] = {{dir, "a", 0, 9, 1}, {dir, "b", 0, 14, 1000}, {dir, "c", 0, 7, 2000}};
  for (const Life& life : lives) {
    front.events.Resume();
    front.replay.Resume();
    auto playing = life.Play(&front, {"--wait-for-subscriber"});
    const std::size_t before = tap.output().size();
    while (tap.output().find(Shown(life.last()), before) == std::string::npos) {
      REQUIRE(tap.process()->ReadSome(5000));
    }
    if (&life == &lives[2]) {
      CHECK(tap.End() == FrontTap::kClean);
      tap.CheckHonest(life.state());
      return;
    }
    Kill(playing.get());
    front.events.Refuse();
    front.replay.Refuse();
  }
}

TEST_CASE("C21: a message that cannot be read does not end the stream, and the stream is not clean") {
  const TempDir dir;
  Front front;
  const Life life(dir, "life", 0, 99, 1);
  FrontTap tap(front, dir, Replay::kOn);
  auto playing =
      life.Play(&front, {"--wait-for-subscriber", "--faults", R"({"faults": [{"kind": "undecodable", "every": 20}]})"});
  CHECK(tap.process()->WaitFor(Shown(life.last())));
  CHECK(tap.End() == FrontTap::kViolated);
}

TEST_CASE("C12: one lost message is noticed with the next one, and a lost last one by asking") {
  const TempDir dir;
  for (const char* faults :
       {R"({"faults": [{"kind": "drop", "at": 50}]})", R"({"faults": [{"kind": "drop", "at": 99}]})",
        R"({"faults": [{"kind": "drop", "probability": 0.5}]})"}) {
    CAPTURE(faults);
    Front front;
    const Life life(dir, "life", 0, 99, 1);
    FrontTap tap(front, dir, Replay::kOn);
    auto playing = life.Play(&front, {"--wait-for-subscriber", "--faults", faults});
    CHECK(tap.End() == FrontTap::kClean);
    tap.CheckHonest(life.state());
  }
}

TEST_CASE("J5: a publisher that is stopped and goes on is heard to the end") {
  const TempDir dir;
  Front front;
  TraceEngine engine(&front, dir, {"--wait-for-subscriber", "--prefill-overhead-us", "1000"});
  FrontTap tap(front, dir, Replay::kOn);
  REQUIRE(tap.process()->WaitFor(Shown(50)));
  engine.process()->Signal(SIGSTOP);
  std::size_t before = 0;
  do {
    before = tap.output().size();
    REQUIRE(tap.process()->ReadSome(300));
  } while (tap.output().size() != before);
  engine.process()->Signal(SIGCONT);
  engine.Finish();
  const int code = tap.End();
  tap.CheckHonest(engine.state());
  CHECK(code == FrontTap::kClean);
}

// `kvwire serve` behind a front, and its own word for what it holds.
class Server {
 public:
  explicit Server(Front* front)
      : process_(
            StartLogged({KVWIRE_BINARY, "serve", "--port", "0", "--dev", "--num-blocks", "300", "--kv-events-config",
                         R"({"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:0",)"
                         R"( "replay_endpoint": "tcp://127.0.0.1:0", "topic": "kv", "kvwire": {"mode": "bind"}})"})) {
    REQUIRE(process_->WaitFor("serving on http"));
    REQUIRE(process_->WaitFor("\n"));
    front->PointTo(PortAfter(process_->output(), "events of rank 0 on "), PortAfter(process_->output(), ", replay "));
    client_ = std::make_unique<httplib::Client>("127.0.0.1", PortAfter(process_->output(), "serving on http:"));
    client_->set_read_timeout(60);
  }

  ChildProcess* process() { return process_.get(); }

  void Complete(std::uint64_t prompts, const std::string& word) {
    for (std::uint64_t i = 0; i < prompts; ++i) {
      std::string prompt;
      for (int repeat = 0; repeat < 40; ++repeat) prompt += fmt::format("{} {} {}. ", word, i, repeat);
      const std::string body = nlohmann::json{{"prompt", prompt}, {"max_tokens", 4}}.dump();
      const auto answer = client_->Post("/v1/completions", body, "application/json");
      REQUIRE(answer);
      REQUIRE(answer->status == 200);
    }
  }
  SequenceNumber batch() const { return Ask().at("batch").get<SequenceNumber>(); }
  std::string state() const {
    std::string lines;
    const nlohmann::json answer = Ask();
    for (const auto& line : answer.at("blocks")) lines += line.get<std::string>() + '\n';
    return lines;
  }

 private:
  nlohmann::json Ask() const {
    const auto answer = client_->Get("/kv/state?rank=0");
    REQUIRE(answer);
    return nlohmann::json::parse(answer->body);
  }

  std::unique_ptr<ChildProcess> process_;
  std::unique_ptr<httplib::Client> client_;
};

TEST_CASE("C13: an engine that is killed and serves again, fewer, as many and more requests, is followed") {
  for (const Replay replay : {Replay::kOn, Replay::kOff}) {
    CAPTURE(replay);
    Stages<Server> stages;
    for (const std::uint64_t prompts : {2U, 8U, 20U}) {
      auto& stage = *stages.emplace_back(std::make_unique<Stage<Server>>(std::to_string(prompts) + " requests"));
      INFO(stage.label);
      stage.engine = std::make_unique<Server>(&stage.front);
      stage.tap = std::make_unique<FrontTap>(stage.front, stage.dir, replay);
      stage.engine->Complete(8, "first");
      if (replay == Replay::kOn) REQUIRE(stage.tap->process()->WaitFor(Shown(stage.engine->batch())));
      Kill(stage.engine->process());
      stage.engine = std::make_unique<Server>(&stage.front);
      stage.engine->Complete(prompts, "second");
    }
    for (auto& stage : stages) {
      INFO(stage->label);
      const int code = stage->tap->End();
      stage->tap->CheckHonest(stage->engine->state());
      if (replay == Replay::kOn) CHECK(code == FrontTap::kClean);
    }
  }
}

}  // namespace
}  // namespace kvwire::test
