// SPDX-License-Identifier: Apache-2.0
#include "kv_events/transport/curve_keys.h"

#include <array>
#include <cstdint>

#include <fmt/format.h>
#include <zmq.h>

#include "kv_events/escape_text.h"
#include "kv_events/text_file.h"

namespace kvwire {

namespace {

constexpr std::size_t kLargestFile = 65'536;
constexpr std::string_view kBlanks = " \t\r";
using KeyText = std::array<char, kCurveKeyLength + 1>;

std::string_view Trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// The value of `name = "value"`, with or without quotes; empty if no line has it.
std::string ValueOf(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    std::string_view line = Trimmed(TakeLine(&text));
    if (!line.starts_with(name)) continue;
    line = Trimmed(line.substr(name.size()));
    if (!line.starts_with('=')) continue;
    line = Trimmed(line.substr(1));
    if (line.size() >= 2 && line.front() == '"' && line.back() == '"') line = line.substr(1, line.size() - 2);
    return std::string(line);
  }
  return {};
}

// The text is not shown: it may be a secret.
Result<std::string> ReadKey(std::string_view file_text, std::string_view name, const std::string& path,
                            std::string_view setting) {
  std::string key = ValueOf(file_text, name);
  if (IsCurveKey(key)) return key;
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("{}: \"{}\" has {} {}; allowed: a file with a line {} = \"...\" of 40 characters, as "
                               "kvwire keygen writes it",
                               setting, ShortText(path), key.empty() ? "no" : "a malformed", name, name));
}

Result<std::string> ReadFile(const std::string& path, std::string_view setting) {
  if (IsCurveKey(path)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{}: this is a key; allowed: the path of a file that holds it", setting));
  }
  Result<std::string> text = ReadTextFile(path, kLargestFile);
  if (!text) text.error().message = fmt::format("{}: {}", setting, text.error().message);
  return text;
}

}  // namespace

bool IsCurveKey(std::string_view text) noexcept {
  if (text.size() != kCurveKeyLength) return false;
  KeyText terminated{};
  text.copy(terminated.data(), text.size());
  std::array<std::uint8_t, 32> bytes{};
  return zmq_z85_decode(bytes.data(), terminated.data()) != nullptr;
}

Result<CurveKeys> MakeCurveKeys() {
  KeyText public_key{};
  KeyText secret_key{};
  if (zmq_curve_keypair(public_key.data(), secret_key.data()) != 0) {
    return MakeError(ErrorCode::kUnsupported, "this libzmq was built without CURVE");
  }
  return CurveKeys{public_key.data(), secret_key.data()};
}

std::string SecretCurveCertificate(const CurveKeys& keys) {
  return fmt::format(
      "# ZeroMQ CURVE secret certificate. Whoever reads this file can be its owner: keep it to yourself.\n\n"
      "metadata\ncurve\n    public-key = \"{}\"\n    secret-key = \"{}\"\n",
      keys.public_key, keys.secret_key);
}

std::string PublicCurveCertificate(const CurveKeys& keys) {
  return fmt::format(
      "# ZeroMQ CURVE public certificate. It may be given to anybody.\n\n"
      "metadata\ncurve\n    public-key = \"{}\"\n",
      keys.public_key);
}

Result<CurveKeys> ReadCurveKeys(const std::string& path, std::string_view setting) {
  const Result<std::string> text = ReadFile(path, setting);
  if (!text) return tl::unexpected(text.error());
  Result<std::string> secret_key = ReadKey(*text, "secret-key", path, setting);
  if (!secret_key) return tl::unexpected(secret_key.error());
  KeyText public_key{};
  if (zmq_curve_public(public_key.data(), secret_key->c_str()) != 0) {
    return MakeError(ErrorCode::kUnsupported, "this libzmq was built without CURVE");
  }
  const std::string beside = ValueOf(*text, "public-key");
  if (!beside.empty() && beside != public_key.data()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{}: the keys in \"{}\" are not of one pair", setting, ShortText(path)));
  }
  return CurveKeys{public_key.data(), *std::move(secret_key)};
}

Result<std::string> ReadCurvePublicKey(const std::string& path, std::string_view setting) {
  const Result<std::string> text = ReadFile(path, setting);
  if (!text) return tl::unexpected(text.error());
  return ReadKey(*text, "public-key", path, setting);
}

}  // namespace kvwire
