// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/descriptor_limit.h"

#include <sys/resource.h>

namespace kvwire::engine {

void RaiseDescriptorLimit() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace kvwire::engine
