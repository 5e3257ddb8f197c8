// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include "kv_events/transport/curve_keys.h"
#include "tests/support/temp_dir.h"

namespace kvwire::test {

// A directory of key files, removed at the end.
class KeyFiles {
 public:
  // Under another number, as an editor does it.
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = directory_ / name;
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
    return path;
  }

 private:
  TempDir directory_;
};

inline CurveKeys NewKeys() {
  Result<CurveKeys> keys = MakeCurveKeys();
  REQUIRE(keys.has_value());
  return *std::move(keys);
}

}  // namespace kvwire::test
