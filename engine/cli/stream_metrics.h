// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "kv_events/clock.h"
#include "kv_events/subscribe/stream_figures.h"

namespace kvwire::engine {

// The figures of watched streams in Prometheus' text format 0.0.4, all with the label `stream`, the name,
// and `dp_rank` where the address says one.
// Threads: any.
// Bounds: of the (group, medium) pairs that a stream names, kMaxShelves have a line of their own unless the medium is
// longer than kMaxMediumBytes; the others are one line, "other".
inline constexpr std::size_t kMaxShelves = 16;
inline constexpr std::size_t kMaxMediumBytes = 60;
std::string StreamMetricsText(std::span<const StreamFigures> streams, MonotonicNanos now);

}  // namespace kvwire::engine
