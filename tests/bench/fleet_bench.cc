// SPDX-License-Identifier: Apache-2.0
// 1, 10 and 50 engines in one process: `kvwire serve --instances`, with events on, from the start of the process to the
// last engine's address, and the memory that is resident then, when nothing was asked yet.
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/rounds.h"

extern char** environ;

namespace kvwire::test {
namespace {

constexpr int kRequiredEngines = 50;
constexpr double kMostSeconds = 5;
constexpr double kMostMegabytes = 50;  // an engine
constexpr int kWatchdogMillis = 60000;

// `kvwire serve` with as many engines; ended with the object.
class Fleet {
 public:
  explicit Fleet(int engines) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    std::vector<std::string> words{
        KVWIRE_EXECUTABLE,
        "serve",
        "--port",
        "0",
        "--instances",
        std::to_string(engines),
        "--kv-events-config",
        R"({"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0",)"
        R"( "kvwire": {"mode": "bind"}})"};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const int error = posix_spawn(&process_, KVWIRE_EXECUTABLE, &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    output_ = ends[0];
    if (error != 0) throw std::runtime_error("kvwire cannot be started");
  }
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;
  ~Fleet() {
    if (process_ > 0) Stop(SIGKILL);
    close(output_);
  }

  // Waits until so many engines said where they serve. False if the process ended before or the time is over.
  bool WaitUntilServing(int engines) {
    std::string text;
    char piece[4096];
    while (Count(text, "serving on ") < engines) {
      pollfd readable{output_, POLLIN, 0};
      if (poll(&readable, 1, kWatchdogMillis) <= 0) return false;
      const ssize_t size = read(output_, piece, sizeof piece);
      if (size <= 0) return false;
      text.append(piece, static_cast<std::size_t>(size));
    }
    return true;
  }

  double ResidentMegabytes() const {
    std::ifstream status("/proc/" + std::to_string(process_) + "/status");
    for (std::string line; std::getline(status, line);) {
      double kilobytes = 0;
      if (std::sscanf(line.c_str(), "VmRSS: %lf kB", &kilobytes) == 1) return kilobytes * 1.024e-3;
    }
    return 0;
  }

  // The exit status that waitpid has.
  int Stop(int signal) {
    kill(process_, signal);
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = 0;
    return status;
  }

 private:
  static int Count(const std::string& text, const std::string& words) {
    int count = 0;
    for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
    return count;
  }

  pid_t process_ = 0;
  int output_ = -1;
};

void StartFleet(benchmark::State& state) {
  const auto engines = static_cast<int>(state.range(0));
  std::vector<double> seconds;
  std::vector<double> megabytes;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    Fleet fleet(engines);
    if (!fleet.WaitUntilServing(engines)) return Fail(state, "the engines did not start");
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    megabytes.push_back(fleet.ResidentMegabytes() / engines);
    if (fleet.Stop(SIGTERM) != 0) return Fail(state, "the engines did not end cleanly");
    state.SetIterationTime(seconds.back());
  }
  state.counters["start_s"] = Median(seconds);
  state.counters["mb_per_engine"] = Median(megabytes);
  if (engines != kRequiredEngines) return;
  Goals goals;
  goals.Judge("start < 5 s", Median(seconds) < kMostSeconds);
  goals.Judge("< 50 MB an engine", Median(megabytes) < kMostMegabytes);
  state.SetLabel(goals.text());
}

void AddAll(int rounds) {
  constexpr int kMostRounds = 7;
  for (const int engines : {1, 10, kRequiredEngines}) {
    benchmark::RegisterBenchmark("fleet", StartFleet)
        ->Arg(engines)
        ->Iterations(rounds < kMostRounds ? 1 : kMostRounds)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace kvwire::test

int main(int argc, char** argv) { return kvwire::test::RunBenchmarks(argc, argv, kvwire::test::AddAll); }
