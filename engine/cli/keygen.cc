// SPDX-License-Identifier: Apache-2.0
// `kvwire keygen`: a pair of CURVE keys in two files.
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "engine/cli/commands.h"
#include "engine/cli/output.h"
#include "kv_events/error.h"
#include "kv_events/escape_text.h"
#include "kv_events/transport/curve_keys.h"

namespace kvwire::engine {

namespace {

constexpr int kExitFailed = 1;
constexpr mode_t kSecretMode = 0600;
constexpr mode_t kPublicMode = 0644;

// Never over a file that is there: it may be the only copy of a key.
Status WriteNew(const std::string& path, const std::string& text, mode_t mode) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) {
    return MakeError(ErrorCode::kUnavailable,
                     fmt::format("NAME: cannot make \"{}\": {}", ShortText(path), std::strerror(errno)));
  }
  const ssize_t written = write(fd, text.data(), text.size());
  const int reason = errno;
  if (close(fd) == 0 && written == static_cast<ssize_t>(text.size())) return {};
  unlink(path.c_str());
  return MakeError(ErrorCode::kUnavailable, fmt::format("NAME: cannot write \"{}\": {}", ShortText(path),
                                                        std::strerror(written < 0 ? reason : ENOSPC)));
}

Result<CurveKeys> MakeFiles(const std::string& secret_path, const std::string& public_path) {
  Result<CurveKeys> keys = MakeCurveKeys();
  if (!keys) return keys;
  Status written = WriteNew(secret_path, SecretCurveCertificate(*keys), kSecretMode);
  if (!written) return tl::unexpected(written.error());
  written = WriteNew(public_path, PublicCurveCertificate(*keys), kPublicMode);
  if (written) return keys;
  unlink(secret_path.c_str());
  return tl::unexpected(written.error());
}

int RunKeygen(const std::string& name) {
  const std::string secret_path = name + ".key_secret";
  const std::string public_path = name + ".key";
  const Result<CurveKeys> keys = MakeFiles(secret_path, public_path);
  if (!keys) {
    PrintError("keygen", keys.error().message);
    return kExitFailed;
  }
  Print(fmt::format("{}: the secret key; keep it to yourself\n{}: the public key\n{}\n", secret_path, public_path,
                    keys->public_key));
  return 0;
}

}  // namespace

void AddKeygenCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("keygen", "Make the keys of a publisher or of a consumer, for CURVE");
  const auto name = std::make_shared<std::string>();
  command->add_option("NAME", *name, "Writes NAME.key_secret and NAME.key, and prints the public key")->required();
  command->callback([name, exit_code] { *exit_code = RunKeygen(*name); });
}

}  // namespace kvwire::engine
