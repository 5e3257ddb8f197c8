// SPDX-License-Identifier: Apache-2.0
#include "kv_events/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kv_events/digest.h"
#include "kv_events/escape_text.h"
#include "kv_events/events.h"

namespace kvwire {

namespace {

using Json = nlohmann::json;

template <class T>
struct Choice {
  std::string_view name;
  T value;
};

constexpr Choice<PublisherKind> kPublishers[] = {{"null", PublisherKind::kNull}, {"zmq", PublisherKind::kZmq}};
constexpr Choice<EventFormat> kEventFormats[] = {{"map", EventFormat::kMap}, {"array", EventFormat::kArray}};
constexpr Choice<ArrayTail> kArrayTails[] = {{"full", ArrayTail::kFull}, {"legacy", ArrayTail::kLegacy}};
constexpr Choice<HashForm> kHashForms[] = {{"u64", HashForm::kUint64},
                                           {"i64", HashForm::kInt64},
                                           {"bytes", HashForm::kBytes},
                                           {"first_i64", HashForm::kFirstInt64}};
constexpr Choice<WideHashes> kWideHashes[] = {{"minimal", WideHashes::kMinimal}, {"always", WideHashes::kAlways}};
constexpr Choice<ReplayLayout> kReplayLayouts[] = {{"topic", ReplayLayout::kTopic}, {"legacy", ReplayLayout::kLegacy}};
constexpr Choice<SocketMode> kModes[] = {
    {"auto", SocketMode::kAuto}, {"bind", SocketMode::kBind}, {"connect", SocketMode::kConnect}};
constexpr Choice<Removals> kRemovals[] = {{"exact", Removals::kExact}, {"per_copy", Removals::kPerCopy}};
constexpr Choice<Overflow> kOverflows[] = {{"resync", Overflow::kResync}, {"drop", Overflow::kDrop}};
constexpr Choice<SnapshotForm> kSnapshots[] = {
    {"kvwire", SnapshotForm::kKvwire}, {"xllm", SnapshotForm::kXllm}, {"off", SnapshotForm::kOff}};

constexpr Choice<TokenIds> kTokenIds[] = {{"full", TokenIds::kFull}, {"omit", TokenIds::kOmit}};

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();
// Stands for every number that is larger.
constexpr double kLargestDouble = std::numeric_limits<double>::max();
constexpr std::string_view kHashEnvironment = "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES";

tl::unexpected<Error> Invalid(std::string message) {
  return MakeError(ErrorCode::kInvalidArgument, "kv-events-config: " + std::move(message));
}

template <class T, std::size_t N>
std::string_view NameOf(const Choice<T> (&choices)[N], T value) {
  return std::ranges::find(choices, value, &Choice<T>::value)->name;
}

// 'a', 'b' or 'c'.
template <class T, std::size_t N>
std::string NamesOf(const Choice<T> (&choices)[N]) {
  std::string names;
  for (std::size_t i = 0; i < N; ++i) {
    names += fmt::format("{}'{}'", i == 0 ? "" : i + 1 == N ? " or " : ", ", choices[i].name);
  }
  return names;
}

// A value as messages show it.
std::string Shown(const Json& value) {
  constexpr std::size_t kLimit = 120;
  if (value.is_number_float() && std::abs(value.get<double>()) == kLargestDouble) {
    return fmt::format("a number {} {:.1e}", value.get<double>() > 0 ? "above" : "below", value.get<double>());
  }
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kLimit) text = text.substr(0, kLimit) + "...";
  return text;
}

bool IsUtf8(const std::string& text) {
  try {
    static_cast<void>(Json(text).dump());
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsAlnum(char c) { return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Continues a number or a word, so that the suffix of 10kB is not taken for one.
bool IsTokenChar(char c) { return IsAlnum(c) || c == '.' || c == '+' || c == '-' || c == '_'; }

// A number that no double holds, as the largest one; nothing when `token` is no such number.
std::optional<std::string> CapNumber(std::string_view token) {
  if (token.front() == '+' || token.find_first_not_of("0123456789.eE+-") != std::string_view::npos) return std::nullopt;
  const std::string text(token);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (!std::isinf(value) || end != text.c_str() + text.size()) return std::nullopt;
  return fmt::format("{}", value > 0 ? kLargestDouble : -kLargestDouble);
}

// "10k" as "10000"; nothing when `token` is not a number with a suffix; an error when it is one without a value.
Result<std::optional<std::string>> ExpandNumber(std::string_view token) {
  constexpr std::string_view kDecimal = "kmgt";
  constexpr std::string_view kBinary = "KMGT";
  std::string_view number = token;
  const char suffix = number.back();
  number.remove_suffix(1);
  const bool negative = number.starts_with('-');
  if (negative) number.remove_prefix(1);
  const std::size_t dot = number.find('.');
  const std::string_view whole = number.substr(0, dot);
  std::string_view fraction = dot == std::string_view::npos ? std::string_view() : number.substr(dot + 1);
  const bool shaped = !whole.empty() && std::ranges::all_of(whole, IsDigit) &&
                      (dot == std::string_view::npos || !fraction.empty()) && std::ranges::all_of(fraction, IsDigit);
  const std::size_t decimal = kDecimal.find(suffix);
  const std::size_t binary = kBinary.find(suffix);
  if (!shaped || (decimal == std::string_view::npos && binary == std::string_view::npos)) return std::nullopt;
  if (binary != std::string_view::npos && dot != std::string_view::npos) {
    return Invalid(fmt::format("{}: K, M, G and T (powers of 1024) take whole numbers", ShortText(token)));
  }
  while (fraction.ends_with('0')) fraction.remove_suffix(1);
  const std::size_t power = binary != std::string_view::npos ? binary + 1 : 3 * (decimal + 1);
  if (fraction.size() > power) return Invalid(fmt::format("{} is not a whole number", ShortText(token)));

  std::int64_t value = 0;
  bool overflow = false;
  const auto append = [&](std::int64_t base, std::int64_t digit) {
    overflow |= __builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value);
  };
  for (const char digit : whole) append(10, digit - '0');
  for (const char digit : fraction) append(10, digit - '0');
  for (std::size_t i = fraction.size(); i < power; ++i) append(binary != std::string_view::npos ? 1024 : 10, 0);
  if (overflow)
    return Invalid(
        fmt::format("{} is {} {}", ShortText(token), negative ? "below" : "above", negative ? -kInt64Max : kInt64Max));
  return fmt::format("{}{}", negative ? "-" : "", value);
}

// Writes out the numbers with a suffix, outside of strings. What is no JSON stays none.
Result<std::string> ExpandNumbers(std::string_view text) {
  std::string expanded;
  std::string_view last_string;  // for messages: most likely the key
  std::size_t i = 0;
  while (i < text.size()) {
    const std::size_t start = i;
    if (text[i] == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) {
        if (text[i] == '\\') ++i;
      }
      i = std::min(i + 1, text.size());
      last_string = text.substr(start, i - start);
      expanded += last_string;
      continue;
    }
    if (!IsTokenChar(text[i])) {
      expanded += text[i++];
      continue;
    }
    while (i < text.size() && IsTokenChar(text[i])) ++i;
    const std::string_view token = text.substr(start, i - start);
    const auto number = ExpandNumber(token);
    if (!number) {
      return MakeError(
          ErrorCode::kInvalidArgument,
          fmt::format("{}{}{}", number.error().message, last_string.empty() ? "" : ", after ", ShortText(last_string)));
    }
    expanded += *number ? **number : CapNumber(token).value_or(std::string(token));
  }
  return expanded;
}

// JSON without duplicate keys.
Result<Json> ParseJson(std::string_view text) {
  // Printing and comparing a value take stack by its depth; a configuration has two levels.
  constexpr int kMaxDepth = 32;
  bool too_deep = false;
  std::vector<std::set<std::string>> open;
  std::string duplicate;
  // False drops what was parsed, so that nothing deep is ever built.
  const Json::parser_callback_t watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    too_deep = too_deep || depth > kMaxDepth;
    if (too_deep) return false;
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second) {
      duplicate = parsed.get<std::string>();
    }
    return true;
  };
  try {
    Json json = Json::parse(text, watch);
    if (too_deep) return Invalid(fmt::format("more than {} objects and lists inside each other", kMaxDepth));
    if (!duplicate.empty()) return Invalid(fmt::format("key {} is given twice", Shown(duplicate)));
    return json;
  } catch (const Json::exception& error) {
    return Invalid(fmt::format("not valid JSON: {}", ShortText(error.what(), 200)));
  }
}

// The JSON text of --kv-events-config as an object.
Result<Json> ParseArgument(std::string_view text) {
  if (text.empty() || text == "None") return Json::object();
  const Result<std::string> expanded = ExpandNumbers(text);
  if (!expanded) return tl::unexpected(expanded.error());
  Result<Json> json = ParseJson(*expanded);
  if (json && !json->is_object()) {
    return Invalid(fmt::format("Input should be a JSON object, found {}", Shown(*json)));
  }
  return json;
}

// The value of a dotted setting: JSON, else a number with suffix, else the text itself.
Result<Json> ParseDottedValue(const std::string& text) {
  const Result<std::string> expanded = ExpandNumbers(text);
  if (!expanded || !Json::accept(*expanded)) return Json(text);
  return ParseJson(*expanded);
}

// Objects are merged; anything else is replaced.
void Merge(Json value, Json* target) {
  if (!value.is_object() || !target->is_object()) {
    *target = std::move(value);
    return;
  }
  for (auto& [key, child] : value.items()) Merge(std::move(child), &(*target)[key]);
}

Status ApplyDotted(const KVEventsConfig::DottedSetting& setting, Json* root) {
  if (setting.key.ends_with('+')) {
    return Invalid(fmt::format("{}: appending with + is for lists, and no key is a list", ShortText(setting.key)));
  }
  Result<Json> value = ParseDottedValue(setting.value);
  if (!value) return tl::unexpected(value.error());
  Json* node = root;
  std::string_view rest = setting.key;
  for (std::size_t dot = rest.find('.'); dot != std::string_view::npos; dot = rest.find('.')) {
    Json& child = (*node)[std::string(rest.substr(0, dot))];
    if (child.is_null()) child = Json::object();
    if (!child.is_object()) {
      return Invalid(fmt::format("{}: \"{}\" is not an object but {}", ShortText(setting.key),
                                 ShortText(rest.substr(0, dot)), Shown(child)));
    }
    node = &child;
    rest.remove_prefix(dot + 1);
  }
  Merge(std::move(*value), &(*node)[std::string(rest)]);
  return {};
}

bool IsNumber(const std::string& text) {
  const Result<std::string> expanded = ExpandNumbers(text);
  return expanded && Json::parse(*expanded, nullptr, false).is_number();
}

// What stands by mistake where a file is to be named may be a secret.
enum class Values { kShown, kHidden };

// Reads the keys of one object and remembers the first error and every key that was asked for.
class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string prefix, Values values = Values::kShown)
      : object_(object), prefix_(std::move(prefix)), values_(values) {}

  void Bool(std::string_view key, bool* value) {
    const Json* const found = Find(key);
    if (found == nullptr) return;
    if (!found->is_boolean()) return Refuse(key, "true or false", *found);
    *value = found->get<bool>();
  }

  template <class Int>
  void Whole(std::string_view key, std::int64_t min, std::int64_t max, Int* value) {
    ReadWhole(key, min, max, "", value);
  }

  // 0 stands for "none" beside the range.
  template <class Int>
  void WholeOrZero(std::string_view key, std::int64_t min, std::int64_t max, Int* value) {
    const auto found = object_.find(key);
    if (found != object_.end() && found->is_number_integer() && *found == 0) min = 0;
    ReadWhole(key, min, max, "0 or ", value);
  }

  template <class Text>
  void String(std::string_view key, Text* value, std::string_view allowed = "a text in UTF-8") {
    const Json* const found = Find(key);
    if (found == nullptr) return;
    if (!found->is_string() || !IsUtf8(found->get<std::string>())) return Refuse(key, allowed, *found);
    *value = found->get<std::string>();
  }

  void StringOrNull(std::string_view key, std::optional<std::string>* value) {
    const Json* const found = Find(key);
    if (found != nullptr && found->is_null()) {
      value->reset();
      return;
    }
    String(key, value, "a text in UTF-8, or null");
  }

  template <class Value, class T, std::size_t N>
  void Choose(std::string_view key, const Choice<T> (&choices)[N], Value* value) {
    const Json* const found = Find(key);
    if (found == nullptr) return;
    const auto* const choice = found->is_string()
                                   ? std::ranges::find(choices, found->get<std::string>(), &Choice<T>::name)
                                   : std::end(choices);
    if (choice == std::end(choices)) return Refuse(key, NamesOf(choices), *found);
    *value = choice->value;
  }

  // The object under `key`, an empty one if it is not there or no object; what else is there may be a secret.
  const Json& Object(std::string_view key, Values values = Values::kShown) {
    static const Json kEmpty = Json::object();
    const Json* const found = Find(key);
    if (found == nullptr) return kEmpty;
    if (found->is_object()) return *found;
    Refuse(key, "an object", *found, values);
    return kEmpty;
  }

  bool Has(std::string_view key) const { return object_.contains(key); }

  void Fail(Error error) {
    if (status_) status_ = tl::unexpected(std::move(error));
  }

  // The first error; keys that nobody asked for are one, ahead of wrong values.
  Status Finish() {
    for (const auto& [key, value] : object_.items()) {
      if (known_.contains(key)) continue;
      std::string names;
      for (const std::string& name : known_) names += (names.empty() ? "" : ", ") + name;
      return Invalid(fmt::format("unknown key {}, found with the value {}; known are {}", Shown(prefix_ + key),
                                 TextOf(value, values_), names));
    }
    return status_;
  }

 private:
  const Json* Find(std::string_view key) {
    known_.emplace(key);
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  template <class Int>
  void ReadWhole(std::string_view key, std::int64_t min, std::int64_t max, std::string_view besides, Int* value) {
    const Json* const found = Find(key);
    if (found == nullptr) return;
    const bool in_range = found->is_number_unsigned()
                              ? found->get<std::uint64_t>() <= static_cast<std::uint64_t>(max) &&
                                    static_cast<std::int64_t>(found->get<std::uint64_t>()) >= min
                              : found->is_number_integer() && found->get<std::int64_t>() >= min;
    // A text that would be a number without its quotes.
    const bool quoted = found->is_string() && IsNumber(found->get<std::string>());
    if (!in_range) {
      return Refuse(
          key, fmt::format("{}a whole number from {} to {}{}", besides, min, max, quoted ? ", without quotes" : ""),
          *found);
    }
    *value = static_cast<Int>(found->get<std::int64_t>());
  }

  void Refuse(std::string_view key, std::string_view allowed, const Json& value, Values values) {
    Fail(Invalid(fmt::format("{}{}: Input should be {}, found {}", prefix_, key, allowed, TextOf(value, values)))
             .value());
  }
  void Refuse(std::string_view key, std::string_view allowed, const Json& value) {
    Refuse(key, allowed, value, values_);
  }

  static std::string TextOf(const Json& value, Values values) {
    return values == Values::kShown ? Shown(value) : fmt::format("a {} that is not shown", value.type_name());
  }

  const Json& object_;
  const std::string prefix_;
  const Values values_;
  std::set<std::string> known_;
  Status status_;
};

// Whether the environment asks for hashes as bytes. An integer that does not fit is not zero either.
Result<bool> AsksForBytes(const KVEventsConfig::Environment& environment) {
  const std::string name(kHashEnvironment);
  const std::optional<std::string> text = environment ? environment(name) : std::nullopt;
  if (!text || text->empty()) return false;
  std::string_view digits = *text;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::invalid_argument || end != digits.data() + digits.size()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{}: Input should be a whole number, found {}", name, Shown(*text)));
  }
  return error == std::errc() && value == 0;
}

Status ReadMediumNames(const Json& object, KVEventsConfig::Extensions* extensions) {
  ObjectReader reader(object, "kvwire.medium_names.");
  reader.String("GPU", &extensions->medium_gpu);
  reader.String("CPU", &extensions->medium_cpu);
  reader.String("DISK", &extensions->medium_disk);
  reader.String("STORAGE", &extensions->medium_storage);
  if (Status read = reader.Finish(); !read) return read;
  const std::pair<std::string_view, const std::string*> media[] = {{kMediumGpu, &extensions->medium_gpu},
                                                                   {kMediumCpu, &extensions->medium_cpu},
                                                                   {kMediumDisk, &extensions->medium_disk},
                                                                   {kMediumStorage, &extensions->medium_storage}};
  // Consumers compare without regard to case.
  for (std::size_t i = 1; i < std::size(media); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (media[j].first == kMediumDisk) continue;  // one name for disk and storage is allowed
      if (CanonicalMedium(*media[i].second) != CanonicalMedium(*media[j].second)) continue;
      return Invalid(fmt::format("kvwire.medium_names: {} and {} are both {}; allowed: different names", media[j].first,
                                 media[i].first, Shown(*media[i].second)));
    }
  }
  return {};
}

Status ReadCurve(const Json& object, CurveConfig* curve) {
  ObjectReader reader(object, "kvwire.curve.", Values::kHidden);
  constexpr std::string_view kPath = "the path of a file";
  reader.String("secret_key_file", &curve->secret_key_file, kPath);
  reader.String("allowed_keys_file", &curve->allowed_keys_file, kPath);
  reader.Bool("allow_any", &curve->allow_any);
  reader.String("server_key_file", &curve->server_key_file, kPath);
  if (Status read = reader.Finish(); !read) return read;
  if (!curve->enabled()) {
    return Invalid("kvwire.curve.secret_key_file: Input should be the path of a file with the publisher's keys");
  }
  if (curve->allow_any && !curve->allowed_keys_file.empty()) {
    return Invalid(fmt::format("kvwire.curve: allow_any is true, and allowed_keys_file is {}; allowed: one of them",
                               Shown(curve->allowed_keys_file)));
  }
  return {};
}

// The profile first, wherever it stands: explicit keys win over it.
Status ReadExtensions(const Json& object, KVEventsConfig::Extensions* extensions) {
  ObjectReader reader(object, "kvwire.");
  std::string profile = extensions->profile;
  reader.String("profile", &profile, "one of " + ProfileNames());
  if (const Status applied = ApplyProfile(profile, extensions); !applied) {
    reader.Fail(Invalid(applied.error().message).value());
  }
  reader.Choose("event_format", kEventFormats, &extensions->event_format);
  reader.Choose("array_tail", kArrayTails, &extensions->array_tail);
  reader.Choose("hash_form", kHashForms, &extensions->hash_form);
  reader.Choose("wide_hashes", kWideHashes, &extensions->wide_hashes);
  reader.Choose("replay_layout", kReplayLayouts, &extensions->replay_layout);
  reader.Whole("first_seq", 0, 1, &extensions->first_seq);
  reader.Choose("mode", kModes, &extensions->mode);
  if (const Status read = ReadMediumNames(reader.Object("medium_names"), extensions); !read) reader.Fail(read.error());
  reader.Choose("removals", kRemovals, &extensions->removals);
  reader.Choose("overflow", kOverflows, &extensions->overflow);
  reader.Whole("queue_bytes", 1, kInt64Max, &extensions->queue_bytes);
  reader.Whole("buffer_bytes", 1, kInt64Max, &extensions->buffer_bytes);
  reader.WholeOrZero("heartbeat_interval_ms", kMinHeartbeatMs, kMaxHeartbeatMs, &extensions->heartbeat_interval_ms);
  reader.Whole("restart_guard_s", 0, kMaxRestartGuardS, &extensions->restart_guard_s);
  reader.Choose("snapshot", kSnapshots, &extensions->snapshot);
  reader.Choose("token_ids", kTokenIds, &extensions->token_ids);
  const Json& curve = reader.Object("curve", Values::kHidden);
  if (object.contains("curve") && object["curve"].is_object()) {
    if (const Status read = ReadCurve(curve, &extensions->curve); !read) reader.Fail(read.error());
  }
  return reader.Finish();
}

// llm-d splits the topic at '@' and takes pod and model from the parts; a model name with '@' would lose both. An empty
// topic is left to hosts that learn their address later.
Status CheckTopic(const KVEventsConfig& config) {
  if (config.kvwire.profile != "llm-d" || config.topic.empty()) return {};
  if (std::ranges::count(config.topic, '@') == 2) return {};
  return Invalid(
      fmt::format("topic: Input should be kv@<pod>@<model> with exactly two '@' for the profile llm-d, found {}",
                  Shown(config.topic)));
}

Result<KVEventsConfig> ReadConfig(const Json& root, const KVEventsConfig::Environment& environment) {
  KVEventsConfig config;
  const Result<bool> bytes = AsksForBytes(environment);
  if (!bytes) return tl::unexpected(bytes.error());
  if (*bytes) config.kvwire.hash_form = HashForm::kBytes;

  ObjectReader reader(root, "");
  reader.Bool("enable_kv_cache_events", &config.enable_kv_cache_events);
  reader.Choose("publisher", kPublishers, &config.publisher);
  reader.String("endpoint", &config.endpoint);
  reader.StringOrNull("replay_endpoint", &config.replay_endpoint);
  reader.Whole("buffer_steps", 0, kInt64Max, &config.buffer_steps);
  reader.Whole("hwm", 0, kInt32Max, &config.hwm);
  reader.Whole("max_queue_size", 1, kInt32Max, &config.max_queue_size);
  reader.String("topic", &config.topic);
  if (const Status read = ReadExtensions(reader.Object("kvwire"), &config.kvwire); !read) reader.Fail(read.error());
  if (const Status finished = reader.Finish(); !finished) return tl::unexpected(finished.error());
  if (const Status checked = CheckTopic(config); !checked) return tl::unexpected(checked.error());
  return config;
}

}  // namespace

PublisherKind KVEventsConfig::EffectivePublisher() const noexcept {
  if (!enable_kv_cache_events) return PublisherKind::kNull;
  return publisher.value_or(PublisherKind::kZmq);
}

Result<KVEventsConfig> KVEventsConfig::FromJson(std::string_view json, const Environment& environment) {
  return FromArguments(json, {}, environment);
}

Result<KVEventsConfig> KVEventsConfig::FromArguments(std::string_view json, std::span<const DottedSetting> dotted,
                                                     const Environment& environment) {
  Result<Json> root = ParseArgument(json);
  if (!root) return tl::unexpected(root.error());
  for (const DottedSetting& setting : dotted) {
    if (const Status applied = ApplyDotted(setting, &*root); !applied) return tl::unexpected(applied.error());
  }
  return ReadConfig(*root, environment);
}

std::string KVEventsConfig::ToJson() const {
  nlohmann::ordered_json object;
  object["enable_kv_cache_events"] = enable_kv_cache_events;
  if (publisher) object["publisher"] = NameOf(kPublishers, *publisher);
  object["endpoint"] = endpoint;
  object["replay_endpoint"] = replay_endpoint ? nlohmann::ordered_json(*replay_endpoint) : nlohmann::ordered_json();
  object["buffer_steps"] = buffer_steps;
  object["hwm"] = hwm;
  object["max_queue_size"] = max_queue_size;
  object["topic"] = topic;
  nlohmann::ordered_json& extensions = object["kvwire"];
  extensions["profile"] = kvwire.profile;
  extensions["event_format"] = NameOf(kEventFormats, kvwire.event_format);
  extensions["array_tail"] = NameOf(kArrayTails, kvwire.array_tail);
  extensions["hash_form"] = NameOf(kHashForms, kvwire.hash_form);
  extensions["wide_hashes"] = NameOf(kWideHashes, kvwire.wide_hashes);
  extensions["replay_layout"] = NameOf(kReplayLayouts, kvwire.replay_layout);
  extensions["first_seq"] = kvwire.first_seq;
  extensions["mode"] = NameOf(kModes, kvwire.mode);
  extensions["medium_names"] = {{kMediumGpu, kvwire.medium_gpu},
                                {kMediumCpu, kvwire.medium_cpu},
                                {kMediumDisk, kvwire.medium_disk},
                                {kMediumStorage, kvwire.medium_storage}};
  extensions["removals"] = NameOf(kRemovals, kvwire.removals);
  extensions["overflow"] = NameOf(kOverflows, kvwire.overflow);
  extensions["queue_bytes"] = kvwire.queue_bytes;
  extensions["buffer_bytes"] = kvwire.buffer_bytes;
  extensions["heartbeat_interval_ms"] = kvwire.heartbeat_interval_ms;
  extensions["restart_guard_s"] = kvwire.restart_guard_s;
  extensions["snapshot"] = NameOf(kSnapshots, kvwire.snapshot);
  extensions["token_ids"] = NameOf(kTokenIds, kvwire.token_ids);
  if (kvwire.curve.enabled()) {
    nlohmann::ordered_json& curve = extensions["curve"];
    curve["secret_key_file"] = kvwire.curve.secret_key_file;
    if (!kvwire.curve.allowed_keys_file.empty()) curve["allowed_keys_file"] = kvwire.curve.allowed_keys_file;
    if (kvwire.curve.allow_any) curve["allow_any"] = true;
    if (!kvwire.curve.server_key_file.empty()) curve["server_key_file"] = kvwire.curve.server_key_file;
  }
  return object.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
}

std::optional<std::string> ProcessEnvironment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

}  // namespace kvwire
