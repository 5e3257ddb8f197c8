// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

// A fuzz target: reads bytes from a stranger and ends the process when a promise about them is broken. One per program,
// with libFuzzer's name, so that libFuzzer or replay_main.cc can call it. Returns 0.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace kvwire::fuzz {

[[noreturn]] inline void Broken(const char* promise, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: broken: %s\n", file, line, promise);
  std::abort();
}

// What a person or a log shows of an error: something, in one line.
inline bool IsOneLine(std::string_view message) {
  return !message.empty() && message.find('\n') == std::string_view::npos;
}

inline std::string_view AsText(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace kvwire::fuzz

#define KVWIRE_PROMISE(holds)                                         \
  do {                                                                \
    if (!(holds)) ::kvwire::fuzz::Broken(#holds, __FILE__, __LINE__); \
  } while (false)
