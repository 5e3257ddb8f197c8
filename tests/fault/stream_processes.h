// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <signal.h>

#include "tests/support/child_process.h"
#include "tests/support/tcp_proxy.h"
#include "tests/support/temp_dir.h"

namespace kvwire::test {

inline std::string FileText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The port that stands in `text` behind `before`, as "tcp://HOST:PORT"; 0 if there is none.
inline std::uint16_t PortAfter(const std::string& text, std::string_view before) {
  const std::size_t at = text.rfind(before);
  if (at == std::string::npos) return 0;
  const std::size_t colon = text.find(':', at + before.size() + std::string_view("tcp:").size());
  std::uint16_t port = 0;
  std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  return port;
}

// Where consumers find an engine, whatever ports its present process has.
struct Front {
  void PointTo(std::uint16_t events_port, std::uint16_t replay_port) {
    events.SetTarget(events_port);
    replay.SetTarget(replay_port);
  }

  TcpProxy events;
  TcpProxy replay;
};

// A program whose log comes with its output.
inline std::unique_ptr<ChildProcess> StartLogged(std::vector<std::string> words) {
  std::vector<std::string> arguments{"-c", "exec \"$0\" \"$@\" 2>&1"};
  arguments.insert(arguments.end(), std::make_move_iterator(words.begin()), std::make_move_iterator(words.end()));
  return std::make_unique<ChildProcess>("/bin/sh", arguments);
}

// An engine on the small trace, behind a front.
class TraceEngine {
 public:
  static constexpr std::size_t kStreamBytes = 1'200'000;  // roughly

  // `settings`: more members of the events' configuration.
  TraceEngine(Front* front, const TempDir& dir, std::vector<std::string> more = {}, const std::string& settings = "")
      : state_(dir / "engine") {
    std::vector<std::string> words{
        KVWIRE_BINARY,
        "replay-trace",
        KVWIRE_GOLDEN_DIR "/small_trace.jsonl",
        "--num-blocks",
        "4000",
        "--max-num-seqs",
        "8",
        "--linger",
        "100",
        "--dump-state",
        state_,
        "--kv-events-config",
        R"({"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0",)"
        R"( "topic": "kv", "kvwire": {"mode": "bind"})" +
            settings + "}"};
    words.insert(words.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
    process_ = StartLogged(std::move(words));
    REQUIRE(process_->WaitFor("the ROUTER socket for replay at "));
    REQUIRE(process_->WaitFor("\n"));
    front->PointTo(PortAfter(process_->output(), "the PUB socket at "),
                   PortAfter(process_->output(), "the ROUTER socket for replay at "));
  }

  ChildProcess* process() { return process_.get(); }
  // Until everything is published.
  void Finish() { REQUIRE(process_->WaitFor("peak memory")); }
  // What it holds at the end. REQUIRES: Finish() was called.
  std::string state() {
    process_->Signal(SIGINT);
    process_->Wait();
    return FileText(state_);
  }

 private:
  std::string state_;
  std::unique_ptr<ChildProcess> process_;
};

// A checking tap behind a front.
class FrontTap {
 public:
  enum class Replay : std::uint8_t { kOff, kOn };
  static constexpr int kClean = 0;
  static constexpr int kViolated = 1;
  static constexpr int kIncomplete = 2;
  static constexpr int kSilent = 3;

  // `wait`: seconds for the first message.
  FrontTap(const Front& front, const TempDir& dir, Replay replay, const std::string& wait = "20")
      : state_(dir / "tap") {
    std::vector<std::string> words{"tap", "--check", "--endpoint", front.events.endpoint(), "--until-idle",
                                   "2",   "--wait",  wait,         "--dump-state",          state_};
    if (replay == Replay::kOn) words.insert(words.end(), {"--replay-endpoint", front.replay.endpoint()});
    process_ = std::make_unique<ChildProcess>(KVWIRE_BINARY, words);
    REQUIRE(process_->WaitFor("connecting to"));
  }

  ChildProcess* process() { return process_.get(); }
  const std::string& output() const { return process_->output(); }

  // Until it ends. A clean verdict is never wrong, an incomplete one gives its reason, and nobody is accused.
  int End() {
    code_ = process_->Wait();
    return code_;
  }
  void CheckHonest(const std::string& engine) const {
    INFO(Tail());
    CHECK((code_ == kClean || code_ == kIncomplete || code_ == kSilent));
    if (code_ == kClean) CHECK(FileText(state_) == engine);
    if (code_ == kIncomplete) CHECK(output().find("\nincomplete: ") != std::string::npos);
  }
  std::string state() const { return FileText(state_); }
  std::string Tail() const { return output().substr(output().size() - std::min<std::size_t>(output().size(), 2000)); }

 private:
  std::string state_;
  std::unique_ptr<ChildProcess> process_;
  int code_ = -1;
};

// An engine, what is between, and a consumer. Several go on side by side: what takes long is a tap's end.
template <class Engine>
struct Stage {
  explicit Stage(std::string what) : label(std::move(what)) {}

  std::string label;
  TempDir dir;
  Front front;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<FrontTap> tap;
};
template <class Engine>
using Stages = std::vector<std::unique_ptr<Stage<Engine>>>;

}  // namespace kvwire::test
