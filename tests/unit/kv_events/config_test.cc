// SPDX-License-Identifier: Apache-2.0
#include "kv_events/config.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire {
namespace {

using Dotted = std::vector<KVEventsConfig::DottedSetting>;

KVEventsConfig::Environment EnvironmentWith(const char* value) {
  return [value](const std::string& name) -> std::optional<std::string> {
    if (value == nullptr || name != "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES") return std::nullopt;
    return value;
  };
}

// The configuration, or a failure of the test that shows why there is none.
KVEventsConfig Parsed(std::string_view json, const Dotted& dotted = {}) {
  const auto config = KVEventsConfig::FromArguments(json, dotted);
  if (!config) FAIL(json << ": " << config.error().message);
  return config ? *config : KVEventsConfig();
}

// The error message, or "" when there is none.
std::string ErrorOf(std::string_view json, const Dotted& dotted = {}) {
  const auto config = KVEventsConfig::FromArguments(json, dotted);
  if (config) return "";
  return config.error().message;
}

bool Contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

TEST_CASE("E4: vLLM's keys and defaults are taken verbatim") {
  const KVEventsConfig defaults = Parsed("{}");
  CHECK_FALSE(defaults.enable_kv_cache_events);
  CHECK_FALSE(defaults.publisher.has_value());
  CHECK(defaults.endpoint == "tcp://*:5557");
  CHECK_FALSE(defaults.replay_endpoint.has_value());
  CHECK(defaults.buffer_steps == 10000);
  CHECK(defaults.hwm == 100000);
  CHECK(defaults.max_queue_size == 100000);
  CHECK(defaults.topic.empty());
  CHECK(defaults == KVEventsConfig());

  const KVEventsConfig all = Parsed(R"({"enable_kv_cache_events": true, "publisher": "zmq",
      "endpoint": "tcp://*:6000", "replay_endpoint": "tcp://*:7000", "buffer_steps": 5, "hwm": 6,
      "max_queue_size": 7, "topic": "kv-events"})");
  CHECK(all.enable_kv_cache_events);
  CHECK(all.publisher == PublisherKind::kZmq);
  CHECK(all.endpoint == "tcp://*:6000");
  CHECK(all.replay_endpoint == "tcp://*:7000");
  CHECK(all.buffer_steps == 5);
  CHECK(all.hwm == 6);
  CHECK(all.max_queue_size == 7);
  CHECK(all.topic == "kv-events");
}

TEST_CASE("E4: an unknown key is refused by name, at both levels") {
  // The first is a flag that some documentation invented.
  CHECK(Contains(ErrorOf(R"({"enable-kv-cache-events": true})"), "unknown key \"enable-kv-cache-events\""));
  CHECK(Contains(ErrorOf(R"({"Topic": "x"})"), "known are buffer_steps, "));
  CHECK(Contains(ErrorOf(R"({"kvwire": {"hash_from": "u64"}})"), "unknown key \"kvwire.hash_from\""));
  CHECK(
      Contains(ErrorOf(R"({"kvwire": {"medium_names": {"TAPE": "x"}}})"), "unknown key \"kvwire.medium_names.TAPE\""));
  CHECK(Contains(ErrorOf(R"({"hash_form": "u64"})"), "unknown key \"hash_form\""));
  CHECK(Contains(ErrorOf(R"({"": 1})"), "unknown key \"\""));
}

TEST_CASE("E10: the publisher defaults to zmq when events are enabled, and to null otherwise") {
  struct Row {
    const char* json;
    PublisherKind effective;
  };
  const Row rows[] = {
      {R"({"enable_kv_cache_events": true})", PublisherKind::kZmq},
      {R"({})", PublisherKind::kNull},
      {R"({"enable_kv_cache_events": false})", PublisherKind::kNull},
      {R"({"enable_kv_cache_events": true, "publisher": "null"})", PublisherKind::kNull},
      {R"({"enable_kv_cache_events": true, "publisher": "zmq"})", PublisherKind::kZmq},
      {R"({"enable_kv_cache_events": false, "publisher": "zmq"})", PublisherKind::kNull},
      {R"({"publisher": "zmq"})", PublisherKind::kNull},
  };
  for (const Row& row : rows) {
    CAPTURE(row.json);
    CHECK(Parsed(row.json).EffectivePublisher() == row.effective);
  }
}

TEST_CASE("E10: an unknown publisher is refused with the names that are known") {
  for (const char* json : {R"({"publisher": "unknown"})", R"({"publisher": ""})", R"({"publisher": "ZMQ"})",
                           R"({"publisher": null})", R"({"publisher": 1})"}) {
    CAPTURE(json);
    CHECK(Contains(ErrorOf(json), "publisher: Input should be 'null' or 'zmq', found "));
  }
  CHECK(Contains(ErrorOf(R"({"publisher": "unknown"})"), "found \"unknown\""));
}

TEST_CASE("D20: whether events are effective can be asked of the configuration") {
  KVEventsConfig config;
  config.publisher = PublisherKind::kZmq;
  CHECK(config.EffectivePublisher() == PublisherKind::kNull);
  config.enable_kv_cache_events = true;
  CHECK(config.EffectivePublisher() == PublisherKind::kZmq);
}

TEST_CASE("An empty argument and None give the defaults") {
  CHECK(Parsed("") == KVEventsConfig());
  CHECK(Parsed("None") == KVEventsConfig());
}

TEST_CASE("A replay endpoint may be null") {
  CHECK_FALSE(Parsed(R"({"replay_endpoint": null})").replay_endpoint.has_value());
}

TEST_CASE("What is no JSON object is refused") {
  CHECK(Contains(ErrorOf("[]"), "Input should be a JSON object, found []"));
  CHECK(Contains(ErrorOf("null"), "Input should be a JSON object, found null"));
  CHECK(Contains(ErrorOf("\"None\""), "Input should be a JSON object"));
  CHECK(Contains(ErrorOf("{"), "not valid JSON"));
  CHECK(Contains(ErrorOf("{\"topic\": \"\xff\"}"), "not valid JSON"));
  CHECK(Contains(ErrorOf("{'topic': 'x'}"), "not valid JSON"));
  CHECK(Contains(ErrorOf("{} {}"), "not valid JSON"));
  CHECK(Contains(ErrorOf("{\"topic\": \"x"), "not valid JSON"));
}

TEST_CASE("A key that is given twice is refused") {
  CHECK(Contains(ErrorOf(R"({"topic": "a", "topic": "a"})"), "key \"topic\" is given twice"));
  CHECK(Contains(ErrorOf(R"({"kvwire": {"mode": "bind", "mode": "bind"}})"), "key \"mode\" is given twice"));
  CHECK(ErrorOf(R"({"topic": "x", "kvwire": {"medium_names": {"GPU": "gpu"}}})").empty());
}

TEST_CASE("A wrong value is refused with the key, what is allowed, and the value") {
  struct Row {
    const char* json;
    const char* message;
  };
  const Row rows[] = {
      {R"({"enable_kv_cache_events": 1})", "enable_kv_cache_events: Input should be true or false, found 1"},
      {R"({"enable_kv_cache_events": "true"})", "enable_kv_cache_events: Input should be true or false"},
      {R"({"endpoint": null})", "endpoint: Input should be a text in UTF-8, found null"},
      {R"({"endpoint": 5557})", "endpoint: Input should be a text in UTF-8, found 5557"},
      {R"({"replay_endpoint": false})", "replay_endpoint: Input should be a text in UTF-8, or null, found false"},
      {R"({"buffer_steps": -1})",
       "buffer_steps: Input should be a whole number from 0 to 9223372036854775807, found -1"},
      {R"({"buffer_steps": 9223372036854775808})", "buffer_steps: Input should be a whole number"},
      {R"({"buffer_steps": 1.5})", "buffer_steps: Input should be a whole number"},
      {R"({"buffer_steps": "10"})", "buffer_steps: Input should be a whole number"},
      {R"({"buffer_steps": true})", "buffer_steps: Input should be a whole number"},
      {R"({"buffer_steps": null})", "buffer_steps: Input should be a whole number"},
      {R"({"hwm": -1})", "hwm: Input should be a whole number from 0 to 2147483647, found -1"},
      {R"({"hwm": 2147483648})", "hwm: Input should be a whole number from 0 to 2147483647, found 2147483648"},
      {R"({"max_queue_size": 0})", "max_queue_size: Input should be a whole number from 1 to 2147483647, found 0"},
      {R"({"topic": ["x"]})", "topic: Input should be a text in UTF-8, found [\"x\"]"},
      {R"({"kvwire": 1})", "kvwire: Input should be an object, found 1"},
      {R"({"kvwire": {"profile": "sgl"}})", "kvwire.profile: Input should be one of 'vllm', 'vllm-0.22', 'llm-d'"},
      {R"({"kvwire": {"profile": 1}})", "kvwire.profile: Input should be one of 'vllm'"},
      {R"({"kvwire": {"event_format": "list"}})",
       "kvwire.event_format: Input should be 'map' or 'array', found \"list\""},
      {R"({"kvwire": {"array_tail": 1}})", "kvwire.array_tail: Input should be 'full' or 'legacy', found 1"},
      {R"({"kvwire": {"hash_form": "u32"}})",
       "kvwire.hash_form: Input should be 'u64', 'i64', 'bytes' or 'first_i64', found \"u32\""},
      {R"({"kvwire": {"wide_hashes": true}})", "kvwire.wide_hashes: Input should be 'minimal' or 'always', found true"},
      {R"({"kvwire": {"replay_layout": "x"}})", "kvwire.replay_layout: Input should be 'topic' or 'legacy', found "},
      {R"({"kvwire": {"first_seq": 2}})", "kvwire.first_seq: Input should be a whole number from 0 to 1, found 2"},
      {R"({"kvwire": {"mode": "dial"}})", "kvwire.mode: Input should be 'auto', 'bind' or 'connect', found \"dial\""},
      {R"({"kvwire": {"medium_names": "GPU"}})", "kvwire.medium_names: Input should be an object, found \"GPU\""},
      {R"({"kvwire": {"medium_names": {"GPU": 1}}})",
       "kvwire.medium_names.GPU: Input should be a text in UTF-8, found 1"},
      {R"({"kvwire": {"medium_names": {"CPU": "gpu"}}})",
       "kvwire.medium_names: GPU and CPU are both \"gpu\"; allowed: different names"},
      {R"({"kvwire": {"medium_names": {"STORAGE": ""}}})", "GPU and STORAGE are both \"\""},
      {R"({"kvwire": {"medium_names": {"DISK": "cpu"}}})",
       "kvwire.medium_names: CPU and DISK are both \"cpu\"; allowed: different names"},
      {R"({"kvwire": {"removals": "last"}})", "kvwire.removals: Input should be 'exact' or 'per_copy', found \"last\""},
      {R"({"kvwire": {"overflow": "block"}})", "kvwire.overflow: Input should be 'resync' or 'drop', found \"block\""},
      {R"({"kvwire": {"queue_bytes": 0}})",
       "kvwire.queue_bytes: Input should be a whole number from 1 to 9223372036854775807, found 0"},
      {R"({"kvwire": {"buffer_bytes": -5}})", "kvwire.buffer_bytes: Input should be a whole number from 1 to "},
      {R"({"kvwire": {"heartbeat_interval_ms": 9}})",
       "kvwire.heartbeat_interval_ms: Input should be 0 or a whole number from 10 to 3600000, found 9"},
      {R"({"kvwire": {"heartbeat_interval_ms": 3600001}})", "0 or a whole number from 10 to 3600000, found 3600001"},
      {R"({"kvwire": {"heartbeat_interval_ms": -1}})", "0 or a whole number from 10 to 3600000, found -1"},
      {R"({"kvwire": {"heartbeat_interval_ms": 0.0}})", "0 or a whole number from 10 to 3600000, found 0.0"},
      {R"({"kvwire": {"restart_guard_s": 3601}})",
       "kvwire.restart_guard_s: Input should be a whole number from 0 to 3600, found 3601"},
      {R"({"kvwire": {"restart_guard_s": "60"}})", "a whole number from 0 to 3600, without quotes, found \"60\""},
      {R"({"kvwire": {"snapshot": "on"}})", "kvwire.snapshot: Input should be 'kvwire', 'xllm' or 'off', found \"on\""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.json);
    const auto config = KVEventsConfig::FromJson(row.json);
    REQUIRE_FALSE(config.has_value());
    CHECK(config.error().code == ErrorCode::kInvalidArgument);
    CAPTURE(config.error().message);
    CHECK(Contains(config.error().message, row.message));
  }
}

TEST_CASE("The bounds themselves are allowed") {
  const KVEventsConfig low =
      Parsed(R"({"buffer_steps": 0, "hwm": 0, "max_queue_size": 1, "kvwire": {"queue_bytes": 1, "buffer_bytes": 1}})");
  CHECK(low.buffer_steps == 0);
  CHECK(low.hwm == 0);
  CHECK(low.max_queue_size == 1);
  CHECK(low.kvwire.queue_bytes == 1);
  const KVEventsConfig off = Parsed(R"({"kvwire": {"heartbeat_interval_ms": 0, "restart_guard_s": 0}})");
  CHECK(off.kvwire.heartbeat_interval_ms == 0);
  CHECK(off.kvwire.restart_guard_s == 0);
  CHECK(Parsed(R"({"kvwire": {"heartbeat_interval_ms": 10}})").kvwire.heartbeat_interval_ms == 10);
  CHECK(Parsed(R"({"kvwire": {"heartbeat_interval_ms": 3600k}})").kvwire.heartbeat_interval_ms == 3600000);
  CHECK(Parsed(R"({"kvwire": {"restart_guard_s": 3600}})").kvwire.restart_guard_s == 3600);
  const KVEventsConfig high = Parsed(R"({"buffer_steps": 9223372036854775807, "hwm": 2147483647})");
  CHECK(high.buffer_steps == INT64_MAX);
  CHECK(high.hwm == INT32_MAX);
}

TEST_CASE("A value in a message is shortened") {
  const std::string message = ErrorOf(R"({"publisher": ")" + std::string(10000, 'x') + R"("})");
  CHECK(message.size() < 300);
  CHECK(Contains(message, "xxx..."));
}

TEST_CASE("Every switch of the kvwire object is read") {
  const KVEventsConfig::Extensions read = Parsed(R"({"kvwire": {"event_format": "array", "array_tail": "legacy",
      "hash_form": "first_i64", "wide_hashes": "always", "replay_layout": "legacy", "first_seq": 1, "mode": "connect",
      "medium_names": {"GPU": "gpu", "CPU": "cpu", "DISK": "ssd", "STORAGE": "disk"}, "removals": "per_copy", "overflow": "drop",
      "queue_bytes": 10, "buffer_bytes": 20, "heartbeat_interval_ms": 1000, "restart_guard_s": 5, "snapshot": "off",
      "token_ids": "omit"}})")
                                              .kvwire;
  KVEventsConfig::Extensions expected;
  expected.event_format = EventFormat::kArray;
  expected.array_tail = ArrayTail::kLegacy;
  expected.hash_form = HashForm::kFirstInt64;
  expected.wide_hashes = WideHashes::kAlways;
  expected.replay_layout = ReplayLayout::kLegacy;
  expected.first_seq = 1;
  expected.mode = SocketMode::kConnect;
  expected.medium_gpu = "gpu";
  expected.medium_cpu = "cpu";
  expected.medium_disk = "ssd";
  expected.medium_storage = "disk";
  expected.removals = Removals::kPerCopy;
  expected.queue_bytes = 10;
  expected.buffer_bytes = 20;
  expected.overflow = Overflow::kDrop;
  expected.heartbeat_interval_ms = 1000;
  expected.restart_guard_s = 5;
  expected.snapshot = SnapshotForm::kOff;
  expected.token_ids = TokenIds::kOmit;
  CHECK(read == expected);
  CHECK(Parsed(R"({"kvwire": {"hash_form": "i64", "mode": "bind"}})").kvwire.hash_form == HashForm::kInt64);
  CHECK(Parsed(R"({"kvwire": {"mode": "bind"}})").kvwire.mode == SocketMode::kBind);
  CHECK(Parsed(R"({"kvwire": {"medium_names": {"CPU": "DRAM"}}})").kvwire.medium_gpu == "GPU");
  CHECK(Parsed(R"({"kvwire": {}})") == KVEventsConfig());
}

TEST_CASE("J7: curve names the file of the keys, and who may connect") {
  const KVEventsConfig read =
      Parsed(R"({"kvwire": {"curve": {"secret_key_file": "s", "allowed_keys_file": "a", "server_key_file": "k"}}})");
  CHECK(read.kvwire.curve == CurveConfig{"s", "a", false, "k"});
  CHECK(Parsed(read.ToJson()) == read);
  const KVEventsConfig any = Parsed(R"({"kvwire": {"curve": {"secret_key_file": "s", "allow_any": true}}})");
  CHECK(any.kvwire.curve == CurveConfig{"s", "", true, ""});
  CHECK(Parsed(any.ToJson()) == any);
  CHECK_FALSE(Parsed("{}").kvwire.curve.enabled());
  CHECK(Parsed("", {{"kvwire.curve.secret_key_file", "s"}}).kvwire.curve.secret_key_file == "s");
  CHECK(Contains(ErrorOf(R"({"kvwire": {"curve": {}}})"), "kvwire.curve.secret_key_file: Input should be the path"));
  CHECK(
      Contains(ErrorOf(R"({"kvwire": {"curve": true}})"), "kvwire.curve: Input should be an object, found a boolean"));
  CHECK(Contains(ErrorOf(R"({"kvwire": {"curve": {"secret_key": "x"}}})"), "unknown key \"kvwire.curve.secret_key\""));
  for (const char* json : {R"({"kvwire": {"curve": {"secret_key": "my-own"}}})", R"({"kvwire": {"curve": "my-own"}})",
                           R"({"kvwire": {"curve": {"secret_key_file": ["my-own"]}}})"}) {
    CHECK_FALSE(Contains(ErrorOf(json), "my-own"));
  }
  CHECK(Contains(
      ErrorOf(R"({"kvwire": {"curve": {"secret_key_file": "s", "allow_any": true, "allowed_keys_file": "a"}}})"),
      "kvwire.curve: allow_any is true, and allowed_keys_file is \"a\"; allowed: one of them"));
}

TEST_CASE("Bare numbers may carry a suffix") {
  struct Row {
    const char* number;
    std::int64_t value;
  };
  const Row rows[] = {
      {"10k", 10000},
      {"2m", 2000000},
      {"1g", 1000000000},
      {"1t", 1000000000000},
      {"1.5k", 1500},
      {"0.5m", 500000},
      {"1.2500k", 1250},
      {"2.0k", 2000},
      {"10K", 10240},
      {"2M", 2097152},
      {"1G", 1073741824},
      {"1T", 1099511627776},
      {"8388607T", 8388607 * (std::int64_t{1} << 40)},
      {"7", 7},
  };
  for (const Row& row : rows) {
    CAPTURE(row.number);
    CHECK(Parsed(R"({"buffer_steps": )" + std::string(row.number) + "}").buffer_steps == row.value);
    CHECK(Parsed("", {{"buffer_steps", row.number}}).buffer_steps == row.value);
  }
  CHECK(Parsed(R"({"buffer_steps":10k,"hwm":1K})").hwm == 1024);
  CHECK(Parsed(R"({"kvwire": {"queue_bytes": 64M}})").kvwire.queue_bytes == 67108864);
}

TEST_CASE("Numbers inside texts are left alone") {
  CHECK(Parsed(R"({"topic": "10k"})").topic == "10k");
  CHECK(Parsed(R"({"topic": "a \"10k\" b", "hwm": 1k})").topic == "a \"10k\" b");
  CHECK(Parsed(R"({"topic": "\\", "hwm": 1k})").hwm == 1000);
}

TEST_CASE("A suffix that does not make a whole number is refused") {
  CHECK(
      Contains(ErrorOf(R"({"hwm": 1.5K})"), "1.5K: K, M, G and T (powers of 1024) take whole numbers, after \"hwm\""));
  CHECK(Contains(ErrorOf(R"({"hwm": 1.0005k})"), "1.0005k is not a whole number, after \"hwm\""));
  CHECK(Contains(ErrorOf(R"({"hwm": 9999999999t})"), "9999999999t is above 9223372036854775807"));
  CHECK(Contains(ErrorOf(R"({"hwm": 8388608T})"), "8388608T is above"));
  CHECK(Contains(ErrorOf(R"({"hwm": -1k})"), "found -1000"));
  for (const char* number : {"10kB", "10kk", "k", "1.k", "10 k", "1e3k", ".5k", "1_0k"}) {
    CAPTURE(number);
    CHECK(Contains(ErrorOf(R"({"hwm": )" + std::string(number) + "}"), "not valid JSON"));
  }
}

TEST_CASE("Dotted settings go on top of the JSON") {
  const KVEventsConfig config =
      Parsed(R"({"topic": "a", "hwm": 1, "kvwire": {"mode": "bind", "medium_names": {"GPU": "g"}}})",
             {{"topic", "b"},
              {"enable_kv_cache_events", "true"},
              {"buffer_steps", "2k"},
              {"replay_endpoint", "null"},
              {"kvwire.first_seq", "1"},
              {"kvwire.medium_names.CPU", "c"},
              {"endpoint", "\"tcp://*:1\""}});
  CHECK(config.topic == "b");
  CHECK(config.hwm == 1);
  CHECK(config.enable_kv_cache_events);
  CHECK(config.buffer_steps == 2000);
  CHECK_FALSE(config.replay_endpoint.has_value());
  CHECK(config.kvwire.mode == SocketMode::kBind);
  CHECK(config.kvwire.first_seq == 1);
  CHECK(config.kvwire.medium_gpu == "g");
  CHECK(config.kvwire.medium_cpu == "c");
  CHECK(config.endpoint == "tcp://*:1");
}

TEST_CASE("Dotted settings need no JSON, and the last one wins") {
  CHECK(Parsed("None", {{"topic", "a"}, {"topic", "b"}}).topic == "b");
  CHECK(Parsed("", {{"endpoint", "tcp://*:5557"}}).endpoint == "tcp://*:5557");
  CHECK(Parsed("", {{"topic", ""}}).topic.empty());
  const KVEventsConfig merged =
      Parsed(R"({"kvwire": {"mode": "bind"}})", {{"kvwire", R"({"first_seq": 1, "queue_bytes": 2K})"}});
  CHECK(merged.kvwire.mode == SocketMode::kBind);
  CHECK(merged.kvwire.first_seq == 1);
  CHECK(merged.kvwire.queue_bytes == 2048);
}

TEST_CASE("A wrong dotted setting is refused") {
  CHECK(Contains(ErrorOf("", {{"topic", "5557"}}), "topic: Input should be a text in UTF-8, found 5557"));
  CHECK(Contains(ErrorOf("", {{"topic", "\xff"}}), "topic: Input should be a text in UTF-8"));
  CHECK(Contains(ErrorOf("", {{"hwm", "many"}}), "hwm: Input should be a whole number"));
  CHECK(Contains(ErrorOf("", {{"hwm", "1.5K"}}), "hwm: Input should be a whole number"));
  CHECK(Contains(ErrorOf("", {{"topics", "x"}}), "unknown key \"topics\""));
  CHECK(Contains(ErrorOf("", {{"", "x"}}), "unknown key \"\""));
  CHECK(Contains(ErrorOf("", {{"kvwire.curve", "x"}}), "kvwire.curve: Input should be an object, found a string"));
  CHECK(Contains(ErrorOf("", {{"topic.x", "y"}, {"topic", "z"}, {"topic.x", "y"}}),
                 "topic.x: \"topic\" is not an object but \"z\""));
  CHECK(Contains(ErrorOf(R"({"kvwire": 3})", {{"kvwire.mode", "bind"}}), "kvwire.mode: \"kvwire\" is not an object"));
  CHECK(Contains(ErrorOf("", {{"kvwire", R"({"mode": "bind", "mode": "bind"})"}}), "key \"mode\" is given twice"));
  CHECK(Contains(ErrorOf("", {{"topic+", "a,b"}}), "topic+: appending with + is for lists, and no key is a list"));
}

TEST_CASE("A profile sets its switches") {
  struct Row {
    const char* name;
    EventFormat event_format;
    ArrayTail array_tail;
    HashForm hash_form;
    WideHashes wide_hashes;
    ReplayLayout replay_layout;
    const char* media;
  };
  using enum EventFormat;
  const Row rows[] = {
      {"vllm", kMap, ArrayTail::kFull, HashForm::kUint64, WideHashes::kMinimal, ReplayLayout::kTopic,
       "GPU CPU DISK STORAGE"},
      {"vllm-0.22", kArray, ArrayTail::kFull, HashForm::kUint64, WideHashes::kMinimal, ReplayLayout::kLegacy,
       "GPU CPU DISK STORAGE"},
      {"llm-d", kMap, ArrayTail::kFull, HashForm::kUint64, WideHashes::kAlways, ReplayLayout::kTopic,
       "GPU CPU DISK STORAGE"},
      {"dynamo", kMap, ArrayTail::kLegacy, HashForm::kUint64, WideHashes::kMinimal, ReplayLayout::kTopic,
       "GPU CPU DISK STORAGE"},
      {"aibrix", kArray, ArrayTail::kLegacy, HashForm::kUint64, WideHashes::kMinimal, ReplayLayout::kTopic,
       "GPU CPU DISK STORAGE"},
      {"kthena", kArray, ArrayTail::kLegacy, HashForm::kUint64, WideHashes::kMinimal, ReplayLayout::kTopic,
       "GPU CPU DISK STORAGE"},
      {"xllm", kMap, ArrayTail::kFull, HashForm::kUint64, WideHashes::kMinimal, ReplayLayout::kLegacy,
       "gpu cpu storage storage"},
      {"sglang", kArray, ArrayTail::kLegacy, HashForm::kFirstInt64, WideHashes::kAlways, ReplayLayout::kLegacy,
       "GPU CPU_PINNED DISK DISK"},
      {"trtllm", kMap, ArrayTail::kFull, HashForm::kUint64, WideHashes::kMinimal, ReplayLayout::kTopic,
       "GPU CPU DISK STORAGE"},
  };
  std::string names;
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const auto read = Parsed(R"({"kvwire": {"profile": ")" + std::string(row.name) + R"("}})").kvwire;
    CHECK(read.profile == row.name);
    CHECK(read.event_format == row.event_format);
    CHECK(read.array_tail == row.array_tail);
    CHECK(read.hash_form == row.hash_form);
    CHECK(read.wide_hashes == row.wide_hashes);
    CHECK(read.replay_layout == row.replay_layout);
    CHECK(read.medium_gpu + " " + read.medium_cpu + " " + read.medium_disk + " " + read.medium_storage == row.media);
    KVEventsConfig::Extensions applied;
    CHECK(ApplyProfile(row.name, &applied).has_value());
    CHECK(applied == read);
    names += (names.empty() ? "'" : ", '") + std::string(row.name) + "'";
  }
  CHECK(ProfileNames() == names);
}

TEST_CASE("An explicit key wins over the profile, wherever either stands") {
  for (const char* json : {R"({"kvwire": {"hash_form": "bytes", "profile": "dynamo"}})",
                           R"({"kvwire": {"profile": "dynamo", "hash_form": "bytes"}})"}) {
    CHECK(Parsed(json).kvwire.hash_form == HashForm::kBytes);
  }
  const KVEventsConfig dotted = Parsed(R"({"kvwire": {"event_format": "map"}})", {{"kvwire.profile", "aibrix"}});
  CHECK(dotted.kvwire.event_format == EventFormat::kMap);
  CHECK(dotted.kvwire.array_tail == ArrayTail::kLegacy);
  CHECK(Parsed(R"({"kvwire": {"profile": "xllm", "medium_names": {"GPU": "GPU"}}})").kvwire.medium_cpu == "cpu");
  CHECK(Parsed(R"({"kvwire": {"profile": "xllm"}})").kvwire.snapshot == SnapshotForm::kXllm);
  CHECK(Parsed(R"({"kvwire": {"profile": "xllm", "snapshot": "off"}})").kvwire.snapshot == SnapshotForm::kOff);
}

TEST_CASE("An unknown profile leaves the switches alone") {
  KVEventsConfig::Extensions switches;
  const Status applied = ApplyProfile("VLLM", &switches);
  REQUIRE_FALSE(applied.has_value());
  CHECK(Contains(applied.error().message, "'trtllm', found \"VLLM\""));
  CHECK(switches == KVEventsConfig::Extensions());
}

TEST_CASE("The topic of the profile llm-d has exactly three parts") {
  const auto topic = [](const std::string& text) {
    return ErrorOf(R"({"topic": ")" + text + R"(", "kvwire": {"profile": "llm-d"}})");
  };
  CHECK(topic("kv@10.0.0.1:8000@org/model") == "");
  CHECK(topic("") == "");
  CHECK(Contains(topic("kv@10.0.0.1:8000@model@v2"), "topic: Input should be kv@<pod>@<model>"));
  CHECK(Contains(topic("kv-events"), "found \"kv-events\""));
  CHECK(ErrorOf(R"({"topic": "kv@a@b@c"})") == "");
}

TEST_CASE("The environment chooses between integers and bytes as the default hash form") {
  struct Row {
    const char* variable;
    const char* json;
    HashForm expected;
  };
  const Row rows[] = {
      {nullptr, "{}", HashForm::kUint64},
      {"", "{}", HashForm::kUint64},
      {"1", "{}", HashForm::kUint64},
      {"-3", "{}", HashForm::kUint64},
      {"99999999999999999999", "{}", HashForm::kUint64},
      {"0", "{}", HashForm::kBytes},
      {"+00", "{}", HashForm::kBytes},
      {"0", R"({"kvwire": {"hash_form": "u64"}})", HashForm::kUint64},
      {"0", R"({"kvwire": {"profile": "dynamo"}})", HashForm::kUint64},
      {"0", R"({"kvwire": {"profile": "vllm-0.22"}})", HashForm::kBytes},
      {"0", R"({"kvwire": {"profile": "llm-d"}})", HashForm::kBytes},
      {"1", R"({"kvwire": {"hash_form": "bytes"}})", HashForm::kBytes},
  };
  for (const Row& row : rows) {
    CAPTURE(row.variable);
    CAPTURE(row.json);
    const auto config = KVEventsConfig::FromJson(row.json, EnvironmentWith(row.variable));
    REQUIRE(config.has_value());
    CHECK(config->kvwire.hash_form == row.expected);
  }
}

TEST_CASE("An environment variable that is no number is refused by name") {
  for (const char* value : {"true", "0x0", "1.0", "0 ", "+", "-"}) {
    CAPTURE(value);
    const auto config = KVEventsConfig::FromJson("{}", EnvironmentWith(value));
    REQUIRE_FALSE(config.has_value());
    CHECK(Contains(config.error().message, "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES: Input should be a whole number"));
  }
}

TEST_CASE("The process environment tells set from unset") {
  CHECK(ProcessEnvironment("PATH").has_value());
  CHECK_FALSE(ProcessEnvironment("KVWIRE_NO_SUCH_VARIABLE").has_value());
}

TEST_CASE("ToJson spells vLLM's keys in its order, and reads back equal") {
  CHECK(
      KVEventsConfig().ToJson() ==
      R"({"enable_kv_cache_events":false,"endpoint":"tcp://*:5557","replay_endpoint":null,"buffer_steps":10000,)"
      R"("hwm":100000,"max_queue_size":100000,"topic":"","kvwire":{"profile":"vllm","event_format":"map",)"
      R"("array_tail":"full","hash_form":"u64","wide_hashes":"minimal","replay_layout":"topic","first_seq":0,)"
      R"("mode":"auto","medium_names":{"GPU":"GPU","CPU":"CPU","DISK":"DISK","STORAGE":"STORAGE"},"removals":"exact",)"
      R"("overflow":"resync","queue_bytes":268435456,"buffer_bytes":536870912,"heartbeat_interval_ms":0,"restart_guard_s":60,"snapshot":"kvwire",)"
      R"("token_ids":"full"}})");
  const char* const texts[] = {
      "{}",
      R"({"enable_kv_cache_events": true, "publisher": "null", "replay_endpoint": "tcp://*:1", "topic": "é\"\\"})",
      R"({"publisher": "zmq", "hwm": 0, "kvwire": {"profile": "sglang", "mode": "bind", "removals": "per_copy"}})",
      R"({"kvwire": {"profile": "xllm", "hash_form": "bytes", "medium_names": {"GPU": ""}, "first_seq": 1}})",
  };
  for (const char* text : texts) {
    CAPTURE(text);
    const KVEventsConfig config = Parsed(text);
    CHECK(Parsed(config.ToJson()) == config);
  }
}

TEST_CASE("E4: a number that does not fit is refused with its key and range, however long it is") {
  const std::string range = "a whole number from 0 to 9223372036854775807, found ";
  const std::string digits(400, '9');
  for (const auto& [number, found] :
       {std::pair<std::string, std::string>("18446744073709551615", "18446744073709551615"),
        {"18446744073709551616", "1.8446744073709552e+19"},
        {std::string(309, '9'), "a number above 1.8e+308"},
        {digits, "a number above 1.8e+308"},
        {"-" + digits, "a number below -1.8e+308"},
        {"1e999", "a number above 1.8e+308"}}) {
    CAPTURE(number);
    const std::string expected = "kv-events-config: buffer_steps: Input should be " + range + found;
    CHECK(ErrorOf("{\"buffer_steps\": " + number + "}") == expected);
    CHECK(ErrorOf("", {{"buffer_steps", number}}) == expected);
  }
  const std::string suffixed = ErrorOf("{\"hwm\": " + digits + "k}");
  CHECK(Contains(suffixed, "is above 9223372036854775807, after \"hwm\""));
  CHECK(suffixed.size() < 200);
}

TEST_CASE("E4: a number in quotes is told to be written without") {
  for (const char* json : {R"({"buffer_steps": "10k"})", R"({"buffer_steps": "10"})", R"({"buffer_steps": "1e400"})"}) {
    CAPTURE(json);
    CHECK(Contains(ErrorOf(json),
                   "buffer_steps: Input should be a whole number from 0 to 9223372036854775807, "
                   "without quotes, found \"1"));
  }
  CHECK_FALSE(Contains(ErrorOf(R"({"buffer_steps": "ten"})"), "quotes"));
}

TEST_CASE("E4: messages carry no control characters of the text they are about") {
  for (const std::string& message :
       {ErrorOf("{\"\x1b[2J\": 1}"), ErrorOf("{\"a\\u001b\": 1}"), ErrorOf("\x1b"),
        ErrorOf(R"({"topic": 1)"
                "\xff\n\x7f"),
        ErrorOf("", {{"\x1b\n+", "1"}}), ErrorOf("", {{"topic", "x"}, {"topic.\x1b.y", "1"}}),
        ErrorOf("{\"kvwire\": {\"profile\": \"\\u001b\\n\"}}"), ErrorOf("{\"\x1b\": 1.5555k}")}) {
    CAPTURE(message);
    CHECK_FALSE(message.empty());
    CHECK(std::ranges::none_of(message, [](char c) { return (c >= 0 && c < ' ') || c == '\x7f' || c == '\xff'; }));
  }
}

TEST_CASE("JSON that is nested too deeply is refused, however deep it is") {
  for (const std::size_t depth : {std::size_t{40}, std::size_t{300'000}}) {
    for (const auto& [open, close] : {std::pair("[", "]"), std::pair(R"({"a":)", "}")}) {
      std::string json = R"({"topic": )";
      for (std::size_t i = 0; i < depth; ++i) json += open;
      json += "1";
      for (std::size_t i = 0; i < depth; ++i) json += close;
      json += "}";
      const auto config = KVEventsConfig::FromJson(json);
      REQUIRE_FALSE(config);
      CHECK(config.error().message.find("inside each other") != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kvwire
