// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/sequence_tracker.h"

#include <optional>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire {
namespace {

TEST_CASE("a live number is judged by the last live number and by what was applied") {
  using V = SequenceVerdict;
  struct Row {
    SequenceNumber first;
    std::optional<SequenceNumber> applied;  // the last one applied
    std::optional<SequenceNumber> live;     // the last one seen live
    SequenceNumber number;
    V verdict;
  };
  const std::vector<Row> rows{
      // Nothing seen yet.
      {0, std::nullopt, std::nullopt, 0, V::kNext},
      {0, std::nullopt, std::nullopt, 1, V::kGap},
      {0, std::nullopt, std::nullopt, 500, V::kGap},
      {1, std::nullopt, std::nullopt, 1, V::kNext},
      {1, std::nullopt, std::nullopt, 2, V::kGap},
      {1, std::nullopt, std::nullopt, 0, V::kNext},
      // In the middle of a stream.
      {0, 7, 7, 8, V::kNext},
      {0, 7, 7, 7, V::kDuplicate},
      {0, 7, 7, 9, V::kGap},
      {0, 7, 7, 6, V::kRestart},
      {0, 7, 7, 0, V::kRestart},
      {0, 0, 0, 0, V::kDuplicate},
      // A recovery runs: live is ahead of applied.
      {0, 7, 12, 13, V::kGap},
      {0, 7, 12, 12, V::kDuplicate},
      {0, 7, 12, 11, V::kRestart},
      {0, 7, 12, 8, V::kRestart},
      // A replay went past the live stream.
      {0, 9, 5, 6, V::kDuplicate},
      {0, 9, 5, 9, V::kDuplicate},
      {0, 9, 5, 10, V::kNext},
      {0, 9, 5, 11, V::kGap},
      {0, 9, 5, 4, V::kRestart},
      // Applied by replay only.
      {0, 9, std::nullopt, 10, V::kNext},
      {0, 9, std::nullopt, 3, V::kDuplicate},
      // The largest number.
      {0, kEndOfReplay - 2, kEndOfReplay - 2, kEndOfReplay - 1, V::kNext},
  };
  for (const Row& row : rows) {
    CAPTURE(row.number);
    CAPTURE(row.applied.value_or(999999));
    CAPTURE(row.live.value_or(999999));
    SequenceTracker tracker(row.first);
    if (row.applied) tracker.AdvanceTo(*row.applied + 1);
    if (row.live) tracker.SawLive(*row.live);
    CHECK(tracker.Judge(row.number) == row.verdict);
  }
}

TEST_CASE("Reset forgets both marks and keeps the first number") {
  SequenceTracker tracker(1);
  tracker.AdvanceTo(9);
  tracker.SawLive(8);
  tracker.Reset();
  CHECK(tracker.next() == 1);
  CHECK_FALSE(tracker.started());
  CHECK_FALSE(tracker.live().has_value());
}

}  // namespace
}  // namespace kvwire
