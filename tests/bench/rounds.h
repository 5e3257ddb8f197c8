// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "kv_events/events.h"

namespace kvwire::test {

// REQUIRES: there are values.
inline double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

// Two ways of doing the same work, measured in turns, so that what slows the machine down for a while meets both. Their
// ratio is the median of the rounds' ratios. A round's figure is what the functions return, in any unit.
class PairedRounds {
 public:
  // Does a round, the one function first and then the other, in the next round the other way round.
  template <class Base, class Other>
  void Run(Base base, Other other) {
    if (base_.size() % 2 == 0) {
      base_.push_back(base());
      other_.push_back(other());
    } else {
      other_.push_back(other());
      base_.push_back(base());
    }
  }
  // A round that was measured by the caller.
  void Add(double base, double other) {
    base_.push_back(base);
    other_.push_back(other);
  }

  double last_other() const { return other_.back(); }
  double base() const { return Median(base_); }
  double other() const { return Median(other_); }
  double ratio() const {
    return Of([](double base, double other) { return other / base; });
  }
  double difference() const {
    return Of([](double base, double other) { return other - base; });
  }

 private:
  template <class Figure>
  double Of(Figure figure) const {
    std::vector<double> figures(base_.size());
    std::transform(base_.begin(), base_.end(), other_.begin(), figures.begin(), figure);
    return Median(std::move(figures));
  }

  std::vector<double> base_;
  std::vector<double> other_;
};

// CPU time of this thread, which does not count what others on the machine take.
inline double ThreadNanos() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

// The nanoseconds of this thread that a function takes. REQUIRES: it does not wait.
template <class Work>
double TimeOf(Work work) {
  const double start = ThreadNanos();
  work();
  return ThreadNanos() - start;
}

// Uniform in [0, 151936), and so many that a branch predictor cannot learn them.
inline std::vector<TokenId> RandomTokens(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<TokenId> token(0, 151935);
  std::vector<TokenId> tokens(count);
  for (TokenId& each : tokens) each = token(random);
  return tokens;
}

// Says beside a figure whether it is within a limit.
class Goals {
 public:
  void Judge(const std::string& limit, bool met) {
    text_ += (text_.empty() ? "" : "; ") + limit + (met ? ": met" : ": not met");
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Set when a benchmark found what it measures to be wrong.
inline bool& FailedFlag() {
  static bool failed = false;
  return failed;
}

// What is measured is wrong, so its figures mean nothing and the program fails.
inline void Fail(benchmark::State& state, const std::string& what) {
  FailedFlag() = true;
  state.SkipWithError(what.c_str());
}

// One iteration is one round: 41 of them, or with --smoke, which only shows that everything runs, 3.
inline int RunBenchmarks(int argc, char** argv, void (*add)(int rounds)) {
  char** const smoke =
      std::find_if(argv, argv + argc, [](const char* text) { return std::strcmp(text, "--smoke") == 0; });
  constexpr int kRounds = 41;
  constexpr int kSmokeRounds = 3;
  add(smoke == argv + argc ? kRounds : kSmokeRounds);
  argc = static_cast<int>(std::remove(smoke, argv + argc, *smoke) - argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return FailedFlag() ? 1 : 0;
}

}  // namespace kvwire::test
