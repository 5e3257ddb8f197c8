// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/cli/tap_format.h"
#include "kv_events/clock.h"
#include "kv_events/subscribe/stream_figures.h"

namespace kvwire::engine {

// What `kvwire top` shows of streams. Pure functions of their arguments.

// How much room there is; 0: without end.
struct TableSize {
  std::size_t columns = 0;
  std::size_t rows = 0;
};

// The worst first: what broke a rule, then by state, then by verdict, then by name.
void SortWorstFirst(std::vector<StreamFigures>* streams);

// A line that counts the streams, one per instance whose ranks are not all there, a line of headings, a line per
// stream, the worst first; what has no room is counted in the last line. Ranks have a column where one is known. No
// line is longer than there is room; 60 columns are needed at least. Texts are escaped.
std::vector<std::string> TopLines(std::vector<StreamFigures> streams, MonotonicNanos now, TableSize size);

// The same as an object, with everything in full.
Json TopAsJson(std::vector<StreamFigures> streams, MonotonicNanos now, double wall_seconds);

// Of a text that is too long the beginning and "~"; bytes are counted as columns, and no character is cut in two.
std::string CutLine(const std::string& text, std::size_t width);

// At most five characters: "9999", "12.3k", "1.2M".
std::string ShortNumber(double value);
// At most four: "0.3s", "12s", "5m", "3h", "9d".
std::string ShortTime(MonotonicNanos time);

}  // namespace kvwire::engine
