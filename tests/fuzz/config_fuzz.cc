// SPDX-License-Identifier: Apache-2.0
// The argument of --kv-events-config; and, up to and after the first '=', a dotted setting.
#include <string>

#include "kv_events/config.h"
#include "tests/fuzz/fuzz_target.h"

namespace kvwire::fuzz {
namespace {

// A configuration says itself in JSON, and that is read as the same.
void Check(const Result<KVEventsConfig>& config) {
  if (!config) {
    KVWIRE_PROMISE(IsOneLine(config.error().message));
    return;
  }
  KVWIRE_PROMISE(config->buffer_steps >= 0);
  KVWIRE_PROMISE(config->hwm >= 0);
  KVWIRE_PROMISE(config->max_queue_size >= 1);
  const Result<KVEventsConfig> again = KVEventsConfig::FromJson(config->ToJson());
  KVWIRE_PROMISE(again.has_value());
  KVWIRE_PROMISE(*again == *config);
}

}  // namespace
}  // namespace kvwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvwire;
  const std::string_view text = fuzz::AsText(data, size);
  fuzz::Check(KVEventsConfig::FromJson(text));
  const KVEventsConfig::Environment environment = [text](const std::string&) { return std::string(text); };
  fuzz::Check(KVEventsConfig::FromJson("", environment));
  const std::size_t sign = text.find('=');
  KVEventsConfig::DottedSetting setting;
  setting.key = text.substr(0, sign);
  if (sign != std::string_view::npos) setting.value = text.substr(sign + 1);
  fuzz::Check(KVEventsConfig::FromArguments(R"({"kvwire": {"medium_names": {"GPU": "g"}}})", {&setting, 1}));
  setting = {"topic", std::string(text)};
  fuzz::Check(KVEventsConfig::FromArguments("", {&setting, 1}));
  return 0;
}
