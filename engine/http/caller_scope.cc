// SPDX-License-Identifier: Apache-2.0
#include "engine/http/caller_scope.h"

#include <utility>

namespace kvwire::engine {

namespace {

thread_local const CallerScope* innermost = nullptr;

}  // namespace

CallerScope::CallerScope(std::function<bool()> gone) : gone_(std::move(gone)), outer_(std::exchange(innermost, this)) {}

CallerScope::~CallerScope() { innermost = outer_; }

bool CallerScope::Gone() { return innermost != nullptr && innermost->gone_(); }

}  // namespace kvwire::engine
