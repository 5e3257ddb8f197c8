// SPDX-License-Identifier: Apache-2.0
#include "engine/faults/fault_script.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

using Json = nlohmann::ordered_json;

struct KindInfo {
  std::string_view name;
  FaultPlace place;
  std::array<std::string_view, 2> parameters;  // the keys that only this kind has
};

// In the order of FaultKind.
constexpr std::array<KindInfo, kNumFaultKinds> kKinds{{
    {"drop", FaultPlace::kLink, {}},
    {"duplicate", FaultPlace::kLink, {}},
    {"delay", FaultPlace::kLink, {"ms"}},
    {"undecodable", FaultPlace::kLink, {}},
    {"overflow", FaultPlace::kQueue, {}},
    {"evict", FaultPlace::kEngine, {"block", "group"}},
    {"preempt", FaultPlace::kEngine, {}},
    {"reset", FaultPlace::kEngine, {}},
    {"restart", FaultPlace::kEngine, {"first_number"}},
}};

constexpr std::string_view kTimes[] = {"at", "every", "probability"};

const KindInfo& InfoOf(FaultKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

std::string NameOf(std::size_t index, std::string_view key) { return fmt::format("faults[{}].{}", index, key); }

// A value as it goes into a message.
std::string Show(const Json& value) { return ShortText(value.dump(-1, ' ', false, Json::error_handler_t::replace)); }

tl::unexpected<Error> Refuse(std::string_view field, std::string_view value, std::string_view allowed) {
  return MakeError(ErrorCode::kInvalidArgument, fmt::format("{}: {}; allowed: {}", field, value, allowed));
}

std::string RangeText(std::uint64_t least, std::uint64_t most) { return fmt::format("{} to {}", least, most); }

// "a", "b" or "c"
std::string Quoted(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += fmt::format("\"{}\"", names[i]);
  }
  return text;
}

// The kinds of these places.
std::string KindNames(std::span<const FaultPlace> places) {
  std::vector<std::string_view> names;
  for (const KindInfo& info : kKinds) {
    if (std::ranges::find(places, info.place) != places.end()) names.push_back(info.name);
  }
  return Quoted(names);
}

constexpr FaultPlace kAllPlaces[] = {FaultPlace::kLink, FaultPlace::kQueue, FaultPlace::kEngine};

Status CheckRange(const std::string& field, std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  if (value >= least && value <= most) return {};
  return Refuse(field, std::to_string(value), RangeText(least, most));
}

Status CheckTime(const Fault& fault, std::size_t index) {
  const int times = int{fault.at.has_value()} + int{fault.every.has_value()} + int{fault.probability.has_value()};
  if (times != 1) {
    return Refuse(fmt::format("faults[{}]", index), fmt::format("{} of at, every and probability", times),
                  "exactly one of them");
  }
  if (fault.at) {
    if (fault.count) return Refuse(NameOf(index, "count"), std::to_string(*fault.count), "none with \"at\"");
    return CheckRange(NameOf(index, "at"), *fault.at, 0, FaultScript::kMaxNumber);
  }
  if (fault.count) {
    Status count = CheckRange(NameOf(index, "count"), *fault.count, 1, FaultScript::kMaxNumber);
    if (!count) return count;
  }
  if (fault.every) return CheckRange(NameOf(index, "every"), *fault.every, 1, FaultScript::kMaxNumber);
  if (*fault.probability >= 0 && *fault.probability <= 1) return {};
  return Refuse(NameOf(index, "probability"), fmt::format("{}", *fault.probability), "0 to 1");
}

Status CheckParameter(const Fault& fault, std::size_t index) {
  if (fault.kind == FaultKind::kDelay)
    return CheckRange(NameOf(index, "ms"), fault.delay_ms, 1, FaultScript::kMaxDelayMs);
  if (fault.kind == FaultKind::kEvict && fault.block.empty()) {
    return Refuse(NameOf(index, "block"), "missing", "the name of a block");
  }
  if (fault.group) {
    Status group = CheckRange(NameOf(index, "group"), *fault.group, 0, FaultScript::kMaxGroup);
    if (!group) return group;
  }
  if (fault.first_number) {
    return CheckRange(NameOf(index, "first_number"), *fault.first_number, 0, FaultScript::kMaxNumber);
  }
  return {};
}

// Reads one fault's object; keeps the first error.
class FaultReader {
 public:
  FaultReader(const Json& object, std::size_t index) : object_(object), index_(index) {}

  Result<Fault> Read() {
    if (!object_.is_object()) return Refuse(fmt::format("faults[{}]", index_), Show(object_), "an object");
    Fault fault;
    ReadKind(&fault);
    if (!error_) CheckKeys(InfoOf(fault.kind).parameters);
    fault.at = Integer("at", 0, FaultScript::kMaxNumber);
    fault.every = Integer("every", 1, FaultScript::kMaxNumber);
    fault.count = Integer("count", 1, FaultScript::kMaxNumber);
    fault.probability = Probability();
    fault.delay_ms = static_cast<std::uint32_t>(Integer("ms", 1, FaultScript::kMaxDelayMs).value_or(0));
    if (fault.kind == FaultKind::kDelay && Find("ms") == nullptr) {
      Fail(Refuse(NameOf(index_, "ms"), "missing", RangeText(1, FaultScript::kMaxDelayMs)));
    }
    ReadBlock(&fault);
    if (const auto group = Integer("group", 0, FaultScript::kMaxGroup))
      fault.group = static_cast<std::uint32_t>(*group);
    fault.first_number = Integer("first_number", 0, FaultScript::kMaxNumber);
    if (error_) return tl::unexpected<Error>(*error_);
    return fault;
  }

 private:
  const Json* Find(std::string_view key) const {
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  void Fail(tl::unexpected<Error> error) {
    if (!error_) error_ = std::move(error).value();
  }

  void ReadKind(Fault* fault) {
    const Json* value = Find("kind");
    const auto named = std::ranges::find_if(kKinds, [value](const KindInfo& info) {
      return value != nullptr && value->is_string() && *value == info.name;
    });
    if (named == kKinds.end()) {
      return Fail(Refuse(NameOf(index_, "kind"), value == nullptr ? "missing" : Show(*value), KindNames(kAllPlaces)));
    }
    fault->kind = static_cast<FaultKind>(std::distance(kKinds.begin(), named));
  }

  void CheckKeys(std::span<const std::string_view> parameters) {
    std::vector<std::string_view> allowed{"kind"};
    allowed.insert(allowed.end(), std::begin(kTimes), std::end(kTimes));
    allowed.push_back("count");
    std::ranges::copy_if(parameters, std::back_inserter(allowed), [](std::string_view key) { return !key.empty(); });
    for (const auto& [key, value] : object_.items()) {
      if (std::ranges::find(allowed, key) != allowed.end()) continue;
      return Fail(MakeError(ErrorCode::kInvalidArgument,
                            fmt::format("faults[{}]: unknown key \"{}\" with the value {}; allowed: {}", index_,
                                        ShortText(key), Show(value), Quoted(allowed))));
    }
  }

  std::optional<std::uint64_t> Integer(std::string_view key, std::uint64_t least, std::uint64_t most) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_number_unsigned()) {
      const auto number = value->get<std::uint64_t>();
      if (number >= least && number <= most) return number;
    }
    Fail(Refuse(NameOf(index_, key), Show(*value), RangeText(least, most)));
    return std::nullopt;
  }

  std::optional<double> Probability() {
    const Json* value = Find("probability");
    if (value == nullptr) return std::nullopt;
    if (value->is_number()) return value->get<double>();
    Fail(Refuse(NameOf(index_, "probability"), Show(*value), "0 to 1"));
    return std::nullopt;
  }

  void ReadBlock(Fault* fault) {
    const Json* value = Find("block");
    if (value == nullptr) return;
    const std::string text = value->is_string() ? value->get<std::string>() : value->dump();
    Result<BlockHash> block = ParseBlockName(text, NameOf(index_, "block"));
    if (!block) return Fail(tl::unexpected<Error>(std::move(block).error()));
    fault->block = *block;
  }

  const Json& object_;
  const std::size_t index_;
  std::optional<Error> error_;
};

Result<FaultScript> ReadScript(const Json& json, std::string_view text) {
  if (!json.is_object()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("faults: \"{}\" is not a JSON object; allowed: {{\"seed\": 7, \"faults\": "
                                 "[{{\"kind\": \"drop\", \"at\": 12}}]}}",
                                 ShortText(text)));
  }
  FaultScript script;
  for (const auto& [key, value] : json.items()) {
    if (key == "seed") {
      if (!value.is_number_unsigned()) return Refuse(key, Show(value), RangeText(0, ~std::uint64_t{0}));
      script.seed = value.get<std::uint64_t>();
    } else if (key == "faults") {
      if (!value.is_array()) return Refuse(key, Show(value), "a list of faults");
      for (std::size_t i = 0; i < value.size() && i <= FaultScript::kMaxFaults; ++i) {
        Result<Fault> fault = FaultReader(value[i], i).Read();
        if (!fault) return tl::unexpected<Error>(std::move(fault).error());
        script.faults.push_back(*std::move(fault));
      }
    } else {
      return MakeError(ErrorCode::kInvalidArgument,
                       fmt::format("unknown key \"{}\" with the value {}; allowed: \"seed\" or \"faults\"",
                                   ShortText(key), Show(value)));
    }
  }
  return script;
}

}  // namespace

std::string_view ToString(FaultKind kind) noexcept { return InfoOf(kind).name; }

FaultPlace PlaceOf(FaultKind kind) noexcept { return InfoOf(kind).place; }

Result<FaultScript> FaultScript::FromJson(std::string_view json) {
  Result<FaultScript> script = ReadScript(Json::parse(json, nullptr, false), json);
  if (!script) return script;
  if (const Status valid = script->Check(); !valid) return tl::unexpected<Error>(valid.error());
  return script;
}

std::string FaultScript::ToJson() const {
  Json list = Json::array();
  for (const Fault& fault : faults) {
    Json object;
    object["kind"] = ToString(fault.kind);
    if (fault.at) object["at"] = *fault.at;
    if (fault.every) object["every"] = *fault.every;
    if (fault.probability) object["probability"] = *fault.probability;
    if (fault.count) object["count"] = *fault.count;
    if (fault.kind == FaultKind::kDelay) object["ms"] = fault.delay_ms;
    if (fault.kind == FaultKind::kEvict) object["block"] = fault.block.ToHex();
    if (fault.group) object["group"] = *fault.group;
    if (fault.first_number) object["first_number"] = *fault.first_number;
    list.push_back(std::move(object));
  }
  Json json;
  json["seed"] = seed;
  json["faults"] = std::move(list);
  return json.dump();
}

Status FaultScript::Check() const {
  if (faults.size() > kMaxFaults) {
    return Refuse("faults", fmt::format("a list of more than {}", kMaxFaults), fmt::format("{} at most", kMaxFaults));
  }
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (Status time = CheckTime(faults[i], i); !time) return time;
    if (Status parameter = CheckParameter(faults[i], i); !parameter) return parameter;
  }
  return {};
}

Status FaultScript::CheckPlaces(std::span<const FaultPlace> allowed, std::string_view who) const {
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (std::ranges::find(allowed, PlaceOf(faults[i].kind)) != allowed.end()) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{}: \"{}\", which {} cannot do; allowed: {}", NameOf(i, "kind"),
                                 ToString(faults[i].kind), who, KindNames(allowed)));
  }
  return {};
}

Result<BlockHash> ParseBlockName(std::string_view text, std::string_view field) {
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::vector<std::uint8_t> bytes;
  if (text.size() == 16 || text.size() == 32 || text.size() == 64) {
    for (std::size_t i = 0; i < text.size(); i += 2) {
      const int high = digit(text[i]);
      const int low = digit(text[i + 1]);
      if (high < 0 || low < 0) break;
      bytes.push_back(static_cast<std::uint8_t>(high * 16 + low));
    }
  }
  if (bytes.size() * 2 == text.size() && !bytes.empty()) return *BlockHash::FromBytes(bytes);
  return Refuse(field, fmt::format("\"{}\"", ShortText(text)), "16, 32 or 64 hexadecimal digits");
}

}  // namespace kvwire::engine
