// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over files: each as it is, cut off at many places, and with seeded changes of bits and bytes. The
// same files give the same inputs on every machine; under a sanitizer, where each takes long, fewer of them.
// usage: <target> FILE_OR_DIRECTORY...
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <unistd.h>

#include "tests/fuzz/fuzz_target.h"

namespace {

using Bytes = std::vector<std::uint8_t>;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kMaxCuts = 64;
constexpr std::size_t kChanges = 60;
#else
constexpr std::size_t kMaxCuts = 512;
constexpr std::size_t kChanges = 400;
#endif

// The input that is running, for the handler of a broken promise.
char running[1024];

void NameInput(int) {
  // Only what a signal handler may do.
  static_cast<void>(!::write(STDERR_FILENO, running, std::strlen(running)));
}

class Replay {
 public:
  void RunFile(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    const Bytes seed{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (!in) {
      std::fprintf(stderr, "cannot read %s\n", path.c_str());
      std::exit(2);
    }
    ++files_;
    Run(path, "as it is", 0, seed);
    const std::size_t step = std::max<std::size_t>(1, seed.size() / kMaxCuts);
    for (std::size_t size = 0; size < seed.size(); size += step) {
      Run(path, "cut to byte", size, Bytes(seed.begin(), seed.begin() + static_cast<std::ptrdiff_t>(size)));
    }
    if (seed.empty()) return;
    for (std::size_t number = 0; number < kChanges; ++number) {
      Run(path, "change", number, Changed(seed, number));
    }
  }

  std::size_t files() const { return files_; }
  std::size_t inputs() const { return inputs_; }

 private:
  void Run(const std::string& path, const char* how, std::size_t number, const Bytes& input) {
    std::snprintf(running, sizeof(running), "input: %s, %s %zu\n", path.c_str(), how, number);
    // In memory of exactly this size, so that a sanitizer sees a read past the end.
    const Bytes exact = input;
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
    ++inputs_;
  }

  // The n-th change of a file depends on nothing but its content and n.
  static Bytes Changed(Bytes bytes, std::size_t number) {
    std::seed_seq seeds(bytes.begin(), bytes.end());
    std::vector<std::uint32_t> state(2);
    seeds.generate(state.begin(), state.end());
    std::mt19937_64 random((std::uint64_t{state[0]} << 32 | state[1]) + number);
    const auto below = [&random](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
    for (std::size_t i = 1 + below(4); i > 0 && !bytes.empty(); --i) {
      const std::size_t at = below(bytes.size());
      const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
      switch (below(5)) {
        case 0:
        case 1:
          *place ^= static_cast<std::uint8_t>(1u << below(8));
          break;
        case 2:
          *place = static_cast<std::uint8_t>(random());
          break;
        case 3:
          bytes.insert(place, static_cast<std::uint8_t>(random()));
          break;
        default:
          bytes.erase(place);
          break;
      }
    }
    return bytes;
  }

  std::size_t files_ = 0;
  std::size_t inputs_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGABRT, NameInput);
  Replay replay;
  for (int i = 1; i < argc; ++i) {
    std::vector<std::string> paths;
    if (std::filesystem::is_directory(argv[i])) {
      for (const auto& entry : std::filesystem::directory_iterator(argv[i])) paths.push_back(entry.path().string());
      std::ranges::sort(paths);
    } else {
      paths.emplace_back(argv[i]);
    }
    for (const std::string& path : paths) replay.RunFile(path);
  }
  std::printf("%zu files, %zu inputs\n", replay.files(), replay.inputs());
  if (replay.files() > 0) return 0;
  std::fprintf(stderr, "usage: %s FILE_OR_DIRECTORY..., with at least one file\n", argv[0]);
  return 2;
}
