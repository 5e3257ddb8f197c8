// SPDX-License-Identifier: Apache-2.0
// Publishing engines as processes of their own.
#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <signal.h>

#include "tests/support/child_process.h"
#include "tests/support/temp_dir.h"

namespace kvwire::test {
namespace {

constexpr const char* kTrace = KVWIRE_GOLDEN_DIR "/small_trace.jsonl";

// kvwire replay-trace with what it logs on its standard output. `environment`: arguments of env.
std::vector<std::string> ReplayTrace(const std::vector<std::string>& environment,
                                     const std::vector<std::string>& options) {
  std::vector<std::string> words{"-c", "exec env \"$@\" 2>&1", "sh"};
  words.insert(words.end(), environment.begin(), environment.end());
  for (const char* word : {KVWIRE_BINARY, "replay-trace", kTrace}) words.emplace_back(word);
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

// Each block that an engine process holds at the end, with its hash.
std::string StateOf(const TempDir& directory, const std::vector<std::string>& environment) {
  const std::string path = directory / "state";
  ChildProcess process("/bin/sh", ReplayTrace(environment, {"--num-blocks", "400", "--dump-state", path,
                                                            "--kv-events-config.enable_kv_cache_events", "true",
                                                            "--kv-events-config.publisher", "\"null\""}));
  const int status = process.Wait();
  INFO(process.output());
  REQUIRE(status == 0);
  std::ifstream in(path);
  std::string state{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  REQUIRE_FALSE(state.empty());
  return state;
}

TEST_CASE("F1: two processes with the default seed hash alike, with another seed they do not") {
  const TempDir directory;
  const std::vector<std::string> unset{"-u", "PYTHONHASHSEED"};
  const std::string by_default = StateOf(directory, unset);
  CHECK(StateOf(directory, unset) == by_default);

  const std::string seeded = StateOf(directory, {"PYTHONHASHSEED=7"});
  CHECK(StateOf(directory, {"PYTHONHASHSEED=7"}) == seeded);
  const std::string zero = StateOf(directory, {"PYTHONHASHSEED=0"});
  CHECK(seeded != by_default);
  CHECK(zero != by_default);
  CHECK(zero != seeded);
}

// A process that publishes, until it is told to stop, at ports which the system chose.
class Engine {
 public:
  Engine()
      : process_("/bin/sh", ReplayTrace({}, {"--kv-events-config.enable_kv_cache_events", "true",
                                             "--kv-events-config.kvwire.mode", "bind", "--kv-events-config.endpoint",
                                             "tcp://127.0.0.1:0", "--kv-events-config.replay_endpoint",
                                             "tcp://127.0.0.1:0", "--wait-for-subscriber"})) {
    REQUIRE(process_.WaitFor("waiting for a subscriber"));
  }
  ~Engine() {
    process_.Signal(SIGTERM);
    process_.Wait();
  }

  std::string endpoint() const { return After("the PUB socket at "); }
  std::string replay_endpoint() const { return After("the ROUTER socket for replay at "); }

 private:
  std::string After(const std::string& text) const {
    const std::string& log = process_.output();
    INFO(log);
    const std::size_t found = log.find(text);
    REQUIRE(found != std::string::npos);
    const std::size_t begin = found + text.size();
    return log.substr(begin, log.find_first_of(", \n", begin) - begin);
  }

  ChildProcess process_;
};

TEST_CASE("B3: a second process with the port of the first fails at start and names socket and endpoint") {
  const Engine first;
  struct Case {
    std::string endpoint;
    std::string replay_endpoint;
    std::string named;
  };
  const std::string any = "tcp://127.0.0.1:0";
  const Case cases[] = {
      {first.endpoint(), any, "cannot bind the PUB socket (endpoint) " + first.endpoint()},
      {any, first.replay_endpoint(), "cannot bind the ROUTER socket (replay_endpoint) " + first.replay_endpoint()},
      {first.endpoint(), first.replay_endpoint(), "cannot bind the PUB socket (endpoint) " + first.endpoint()}};
  for (const Case& c : cases) {
    ChildProcess second(
        "/bin/sh", ReplayTrace({}, {"--kv-events-config.enable_kv_cache_events", "true",
                                    "--kv-events-config.kvwire.mode", "bind", "--kv-events-config.endpoint", c.endpoint,
                                    "--kv-events-config.replay_endpoint", c.replay_endpoint}));
    CHECK(second.Wait() == 1);
    INFO(second.output());
    CHECK(second.output().find(c.named + ": Address already in use") != std::string::npos);
    // It did nothing else before.
    CHECK(second.output().find("requests ") == std::string::npos);
  }
}

}  // namespace
}  // namespace kvwire::test
