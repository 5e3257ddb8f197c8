// SPDX-License-Identifier: Apache-2.0
#include "engine/http/request_body.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/http/utf8_text.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

using Json = nlohmann::json;

// Of nlohmann's exceptions: a number that no double holds.
constexpr int kNumberOutOfRange = 406;

// Looks through a text without building anything; stops at the first fault.
class BodyCheck final : public nlohmann::json_sax<Json> {
 public:
  BodyCheck(std::string_view body, std::string_view name) : body_(body), name_(name) {}

  bool null() override { return Count(); }
  bool boolean(bool) override { return Count(); }
  bool number_integer(number_integer_t) override { return Count(); }
  bool number_unsigned(number_unsigned_t) override { return Count(); }
  bool number_float(number_float_t, const string_t&) override { return Count(); }
  bool string(string_t&) override { return Count(); }
  bool binary(binary_t&) override { return Count(); }
  bool start_object(std::size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    return Refuse(fmt::format("{} has the key \"{}\" twice in one object, expected once", name_, ShortText(name)));
  }
  bool parse_error(std::size_t position, const std::string& last, const nlohmann::detail::exception& error) override {
    if (error.id == kNumberOutOfRange) {
      return Refuse(fmt::format("{} has the number {} at byte {}, expected one that a double holds", name_,
                                ShortText(last), position));
    }
    constexpr std::size_t kShown = 20;
    const std::size_t end = std::min(position, body_.size());
    const std::size_t begin = end - std::min(end, kShown);
    return Refuse(fmt::format("{} is no JSON at byte {}, after \"{}\"", name_, position,
                              EscapeText(body_.substr(begin, end - begin))));
  }

  const std::optional<std::string>& fault() const noexcept { return fault_; }

 private:
  bool Refuse(std::string fault) {
    fault_ = std::move(fault);
    return false;
  }
  bool Count() {
    if (++values_ <= kMaxBodyValues) return true;
    return Refuse(fmt::format("{} has more than {} values", name_, kMaxBodyValues));
  }
  bool Open() {
    if (keys_.size() == kMaxBodyDepth) {
      return Refuse(fmt::format("{} nests objects and lists deeper than {}", name_, kMaxBodyDepth));
    }
    keys_.emplace_back();
    return Count();
  }
  bool Close() {
    keys_.pop_back();
    return true;
  }

  const std::string_view body_;
  const std::string_view name_;
  std::vector<std::set<std::string>> keys_;  // of every open object; empty for a list
  std::size_t values_ = 0;
  std::optional<std::string> fault_;
};

}  // namespace

ApiResult<Json> ParseBody(std::string_view body, std::string_view name) {
  if (body.size() > kMaxBodyBytes) {
    return tl::unexpected<ApiError>(
        PayloadTooLarge(fmt::format("{} has {} bytes, expected at most {}", name, body.size(), kMaxBodyBytes)));
  }
  const std::size_t good = WellFormedUtf8(body);
  if (good != body.size()) {
    return tl::unexpected<ApiError>(
        BadRequest(fmt::format("{} is no UTF-8 at byte {}, near \"{}\"", name, good, ShortText(body.substr(good, 8)))));
  }
  BodyCheck check(body, name);
  if (!Json::sax_parse(body, &check)) return tl::unexpected<ApiError>(BadRequest(check.fault().value_or("")));
  Json json = Json::parse(body);
  if (!json.is_object()) {
    return tl::unexpected<ApiError>(
        BadRequest(fmt::format("{} is \"{}\", expected a JSON object", name, ShortText(body))));
  }
  return json;
}

}  // namespace kvwire::engine
