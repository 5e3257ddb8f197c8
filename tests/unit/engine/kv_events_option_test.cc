// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/kv_events_option.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire::engine {
namespace {

// Parses as `kvwire command TRACE ...` would.
struct Parsed {
  explicit Parsed(std::vector<std::string> arguments) {
    CLI::App* command = app.add_subcommand("command");
    command->add_option("trace", trace)->required();
    option.AddTo(*command);
    arguments.insert(arguments.begin(), "command");
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(std::move(reversed));
  }

  CLI::App app;
  KVEventsOption option;
  std::string trace;
};

TEST_CASE("without the option events are off") {
  const Parsed parsed({"trace.jsonl"});
  const auto config = parsed.option.Config();
  REQUIRE(config.has_value());
  CHECK_FALSE(config->enable_kv_cache_events);
}

TEST_CASE("JSON and dotted settings are taken together, wherever the trace stands") {
  const Parsed parsed({"--kv-events-config.topic", "x", "--kv-events-config",
                       R"({"enable_kv_cache_events": true, "topic": "y", "endpoint": "tcp://*:6000"})",
                       "--kv-events-config.kvwire.mode", "bind", "trace.jsonl", "--kv-events-config.hwm=5"});
  const auto config = parsed.option.Config();
  REQUIRE(config.has_value());
  CHECK(parsed.trace == "trace.jsonl");
  CHECK(config->enable_kv_cache_events);
  CHECK(config->topic == "x");
  CHECK(config->endpoint == "tcp://*:6000");
  CHECK(config->kvwire.mode == SocketMode::kBind);
  CHECK(config->hwm == 5);
}

TEST_CASE("keys that are unset by default have a dotted form too") {
  const Parsed parsed({"t", "--kv-events-config.publisher", "zmq", "--kv-events-config.replay_endpoint", "tcp://*:6001",
                       "--kv-events-config.kvwire", R"({"removals": "per_copy"})",
                       "--kv-events-config.enable_kv_cache_events", "true"});
  const auto config = parsed.option.Config();
  REQUIRE(config.has_value());
  CHECK(config->EffectivePublisher() == PublisherKind::kZmq);
  CHECK(config->replay_endpoint == "tcp://*:6001");
  CHECK(config->kvwire.removals == Removals::kPerCopy);
}

TEST_CASE("every key has a dotted form, at any depth, and an object takes JSON") {
  const Parsed parsed({"t", "--kv-events-config.kvwire.medium_names.GPU", "hbm",
                       "--kv-events-config.kvwire.medium_names", R"({"CPU": "dram"})"});
  const auto config = parsed.option.Config();
  REQUIRE(config.has_value());
  CHECK(config->kvwire.medium_gpu == "hbm");
  CHECK(config->kvwire.medium_cpu == "dram");
  CHECK(config->kvwire.medium_storage == "STORAGE");
}

TEST_CASE("an unknown key is refused by name in either form") {
  try {
    const Parsed parsed({"t", "--kv-events-config.colour", "red"});
    FAIL_CHECK("accepted");
  } catch (const CLI::ParseError& error) {
    CHECK(std::string(error.what()).find("--kv-events-config.colour") != std::string::npos);
  }
  const Parsed parsed({"t", "--kv-events-config", R"({"colour": "red"})"});
  const auto config = parsed.option.Config();
  REQUIRE_FALSE(config.has_value());
  CHECK(config.error().message.starts_with("--kv-events-config: "));
  CHECK(config.error().message.find("colour") != std::string::npos);
  CHECK(config.error().message.find("kv-events-config", 5) == std::string::npos);
}

}  // namespace
}  // namespace kvwire::engine
