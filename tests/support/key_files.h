// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include "kv_events/transport/curve_keys.h"

namespace kvwire::test {

// A directory of key files, removed at the end.
class KeyFiles {
 public:
  KeyFiles() {
    std::string name = (std::filesystem::temp_directory_path() / "kvwire_keys.XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~KeyFiles() { std::filesystem::remove_all(path_); }
  KeyFiles(const KeyFiles&) = delete;
  KeyFiles& operator=(const KeyFiles&) = delete;

  // Under another number, as an editor does it.
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = path_ / name;
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
    return path;
  }

 private:
  std::filesystem::path path_;
};

inline CurveKeys NewKeys() {
  Result<CurveKeys> keys = MakeCurveKeys();
  REQUIRE(keys.has_value());
  return *std::move(keys);
}

}  // namespace kvwire::test
