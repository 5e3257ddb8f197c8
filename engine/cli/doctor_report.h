// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/cli/tap_format.h"

namespace kvwire::engine {

// What `kvwire doctor` found, check by check, in the order of the checks. A value.
struct Finding {
  enum class Outcome : std::uint8_t {
    kWell,
    kIll,
    kUnknown,  // could not be checked, because of an ill one; or was not asked for
  };

  std::string check;
  Outcome outcome = Outcome::kUnknown;
  std::string detail;  // what was seen
  std::string advice;  // what to do; empty: nothing
};

class DoctorReport {
 public:
  void Well(std::string check, std::string detail);
  void Ill(std::string check, std::string detail, std::string advice);
  void Unknown(std::string check, std::string detail, std::string advice = {});

  const std::vector<Finding>& findings() const noexcept { return findings_; }
  std::size_t NumIll() const noexcept;

  // A line per finding, one more for its advice; the last line says how it stands. Texts are escaped.
  std::string Text() const;
  Json AsJson() const;

 private:
  std::vector<Finding> findings_;
};

}  // namespace kvwire::engine
