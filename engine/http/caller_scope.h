// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace kvwire::engine {

// Tells what runs on this thread whether anybody still waits for its outcome. Who works for somebody else makes one
// around the work; what waits for long asks Gone now and then, and gives up.
//
// Threads: each has its own; Gone calls the function on the thread of its scope.
class CallerScope {
 public:
  explicit CallerScope(std::function<bool()> gone);
  ~CallerScope();
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;

  // What the innermost scope says; false without one.
  static bool Gone();

 private:
  const std::function<bool()> gone_;
  const CallerScope* const outer_;
};

}  // namespace kvwire::engine
