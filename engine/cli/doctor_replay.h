// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/cli/doctor_report.h"
#include "engine/cli/doctor_sample.h"
#include "kv_events/clock.h"
#include "kv_events/subscribe/dealer_ask.h"
#include "kv_events/subscribe/dialect.h"
#include "kv_events/subscribe/hello_client.h"
#include "kv_events/wire/frames.h"

namespace kvwire::engine {

// What a publisher's replay socket answers, for `kvwire doctor`: a replay of everything, and, where the dialect has it,
// who the publisher is.
// Threads: one at a time; time is an argument.
// Bounds: an answer that pauses for 3 s (a state: 8 s), or has not ended after 60 s, is given up.
class DoctorReplay {
 public:
  // What is replayed goes to `sample` too, which outlives this.
  DoctorReplay(ReplayLinkFactory links, Dialect dialect, DoctorSample* sample);

  void Start(MonotonicNanos now);
  // One step. Whether something came.
  bool Poll(MonotonicNanos now);
  // Whether nothing more is awaited.
  bool over() const noexcept { return !replay_.active() && !hello_.active(); }
  // To wait on.
  std::vector<FrameLink*> links() const;

  // REQUIRES: Start was called.
  void Report(DoctorReport* report) const;

 private:
  // The last thing that came, or that nothing does.
  enum class End : std::uint8_t { kNone, kMark, kSilence, kTime };

  bool PollReplay(MonotonicNanos now);
  bool PollHello(MonotonicNanos now);
  void TakeReplayed(const ReplayMessage& message);
  void ReportHistory(DoctorReport* report) const;
  void ReportState(DoctorReport* report) const;
  void ReportHello(DoctorReport* report) const;
  void ReportHeld(DoctorReport* report) const;

  const DialectTraits& traits_;
  DoctorSample* const sample_;
  DealerAsk replay_;
  HelloClient hello_;
  MonotonicNanos give_up_at_ = 0;

  End end_ = End::kNone;
  std::size_t messages_ = 0;
  std::size_t malformed_ = 0;
  bool with_topic_ = false;
  SequenceNumber oldest_ = 0;
  SequenceNumber newest_ = 0;
  std::size_t stored_ = 0;  // blocks, as often as they are stored
  bool is_state_ = true;    // nothing is removed, and nothing is cleared but at the beginning

  HelloClient::Outcome greeting_ = HelloClient::Outcome::kNothing;
  std::optional<Hello> said_;
};

}  // namespace kvwire::engine
