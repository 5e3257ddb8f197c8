// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/number_options.h"

#include <cstdint>
#include <limits>
#include <string>

#include <doctest/doctest.h>

namespace kvwire::engine {
namespace {

struct Options {
  std::uint64_t count = 7;
  std::uint32_t narrow = 5;
  double seconds = 0.5;
  double number = 0;
};

// What an argument makes of the options, or the message of its refusal.
struct Parsed {
  explicit Parsed(const std::string& argument) {
    CLI::App app;
    AddCount(app, "--count", &options.count, {1}, "");
    AddCount(app, "--narrow", &options.narrow, {2, 1000}, "");
    AddCount(app, "--wide", &options.narrow, {}, "");
    AddSeconds(app, "--seconds", &options.seconds, "");
    AddNumber(app, "--number", &options.number, "");
    try {
      app.parse(argument);
    } catch (const CLI::ParseError& refusal) {
      error = refusal.what();
    }
  }

  Options options;
  std::string error;
};

TEST_CASE("numbers of the range are taken, its ends included") {
  CHECK(Parsed("--count 1").options.count == 1);
  CHECK(Parsed("--count 18446744073709551615").options.count == std::numeric_limits<std::uint64_t>::max());
  CHECK(Parsed("--count 010").options.count == 10);
  CHECK(Parsed("--narrow=1000").options.narrow == 1000);
  CHECK(Parsed("--seconds 1e9").options.seconds == 1e9);
  CHECK(Parsed("--seconds 0").options.seconds == 0);
  CHECK(Parsed("--number .25").options.number == 0.25);
  CHECK(Parsed("").options.count == 7);
}

TEST_CASE("what is no count of the range is refused with flag, value and range") {
  for (const std::string value : {"-1", "0", "1.5", "1e3", "+1", "0x10", "ten", "18446744073709551616"}) {
    CAPTURE(value);
    const Parsed parsed("--count=" + value);
    CHECK(parsed.error ==
          "--count: \"" + value + "\" is not allowed; allowed: a whole number from 1 to 18446744073709551615");
    CHECK(parsed.options.count == 7);
  }
  CHECK(Parsed("--narrow 1001").error == "--narrow: \"1001\" is not allowed; allowed: a whole number from 2 to 1000");
  CHECK(Parsed("--wide 4294967296").error.ends_with("from 0 to 4294967295"));
  CHECK(Parsed("--count " + std::string(400, '9')).error.size() < 200);
}

TEST_CASE("what is no finite number from 0 to a billion is refused with flag, value and range") {
  for (const std::string value :
       {"nan", "NaN", "-nan", "inf", "-inf", "-1", "-1e-9", "1000000001", "1e300", "1e999", "1s", "0x1p3", "ten"}) {
    CAPTURE(value);
    CHECK(Parsed("--seconds=" + value).error ==
          "--seconds: \"" + value + "\" is not allowed; allowed: seconds from 0 to 1000000000");
    CHECK(Parsed("--number=" + value).error ==
          "--number: \"" + value + "\" is not allowed; allowed: a number from 0 to 1000000000");
  }
}

TEST_CASE("seconds become nanoseconds, and what does not fit the nearest that does") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  CHECK(NanosOf(0) == 0);
  CHECK(NanosOf(1.5) == 1'500'000'000);
  CHECK(NanosOf(1e9) == 1'000'000'000'000'000'000);
  CHECK(NanosOf(std::numeric_limits<double>::quiet_NaN()) == 0);
  for (const double seconds : {1e10, 1e300, kInfinity}) {
    CHECK(NanosOf(seconds) > NanosOf(1e9));
    CHECK(NanosOf(seconds) < std::numeric_limits<MonotonicNanos>::max() / 2 + 1);
    CHECK(NanosOf(-seconds) == -NanosOf(seconds));
  }
}

}  // namespace
}  // namespace kvwire::engine
