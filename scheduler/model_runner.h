// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/scheduler_output.h"

namespace kvwire::scheduler {

// Executes a step on the model; the seam between scheduling and computing.
// Threads: called on the step thread; Run returns when the step's KV is written.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual RunnerOutput Run(const SchedulerOutput& step) = 0;

  // No step follows: gives up what is held outside of this process. Idempotent.
  virtual void Close() {}
};

}  // namespace kvwire::scheduler
