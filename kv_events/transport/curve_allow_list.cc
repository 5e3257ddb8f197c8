// SPDX-License-Identifier: Apache-2.0
#include "kv_events/transport/curve_allow_list.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "kv_events/escape_text.h"
#include "kv_events/text_file.h"
#include "kv_events/transport/curve_keys.h"

namespace kvwire {

namespace {

constexpr std::size_t kLargestList = 1 << 20;
constexpr std::size_t kMostTold = 64;
constexpr std::string_view kLineBlanks = " \t\r";

}  // namespace

bool CurveClients::Counted(bool admit) noexcept {
  (admit ? admitted_ : denied_).fetch_add(1, std::memory_order_relaxed);
  return admit;
}

bool AnyCurveClient::Admit(std::string_view /*public_key*/, std::string_view /*address*/) { return Counted(true); }

CurveAllowList::CurveAllowList(std::string path, std::string setting, LogSink log)
    : path_(std::move(path)), setting_(std::move(setting)), log_(std::move(log)) {}

Result<std::shared_ptr<CurveAllowList>> CurveAllowList::Open(const std::string& path, std::string_view setting,
                                                             LogSink log) {
  std::shared_ptr<CurveAllowList> list(new CurveAllowList(path, std::string(setting), std::move(log)));
  list->version_ = VersionOf(path);
  if (const Status read = list->Read(); !read) return tl::unexpected(read.error());
  return list;
}

CurveAllowList::Version CurveAllowList::VersionOf(const std::string& path) noexcept {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return {};
  return {found.st_dev, found.st_ino, found.st_size,
          std::int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec};
}

Status CurveAllowList::Read() {
  const Result<std::string> text = ReadTextFile(path_, kLargestList);
  if (!text) return MakeError(text.error().code, fmt::format("{}: {}", setting_, text.error().message));
  std::set<std::string, std::less<>> keys;
  std::size_t number = 0;
  for (std::string_view rest = *text; !rest.empty();) {
    std::string_view line = TakeLine(&rest);
    ++number;
    line.remove_prefix(std::min(line.find_first_not_of(kLineBlanks), line.size()));
    const std::string_view word = line.substr(0, line.find_first_of(kLineBlanks));
    if (word.empty() || word == "#") continue;
    if (!IsCurveKey(word)) {
      return MakeError(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: \"{}\", line {}: it begins with no key; allowed: a public key of 40 characters, "
                      "then a name, or a comment behind \"# \"",
                      setting_, ShortText(path_), number));
    }
    keys.emplace(word);
  }
  keys_ = std::move(keys);
  return {};
}

void CurveAllowList::Refresh() {
  const Version version = VersionOf(path_);
  if (version == version_) return;
  version_ = version;
  const Status read = Read();
  if (read) {
    told_.clear();
    Log(log_, LogLevel::kInfo, fmt::format("{}: \"{}\" was read again: {} keys", setting_, path_, keys_.size()));
  } else {
    Log(log_, LogLevel::kError,
        fmt::format("{}; the {} keys from before stay in force", read.error().message, keys_.size()));
  }
}

bool CurveAllowList::Admit(std::string_view public_key, std::string_view address) {
  Refresh();
  if (keys_.find(public_key) != keys_.end()) return Counted(true);
  if (told_.size() < kMostTold && told_.emplace(public_key).second) {
    Log(log_, LogLevel::kWarning,
        fmt::format("a client at {} with the key {} was turned away: it is not in {} \"{}\"", ShortText(address),
                    public_key, setting_, path_));
  }
  return Counted(false);
}

}  // namespace kvwire
