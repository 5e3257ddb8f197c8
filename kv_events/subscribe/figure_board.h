// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "kv_events/clock.h"
#include "kv_events/subscribe/event_stream.h"
#include "kv_events/subscribe/stream_checker.h"
#include "kv_events/subscribe/stream_figures.h"

namespace kvwire {

// Where a stream's thread puts the stream's figures, and others read them.
//
// Threads: figures by any; the rest by the stream's.
// Bounds: figures are at most kRefresh old as long as Look is called so often; a change of state is there at once.
class FigureBoard {
 public:
  static constexpr MonotonicNanos kRefresh = 100'000'000;

  explicit FigureBoard(StreamAddress address) : address_(std::move(address)) { figures_.address = address_; }

  // To be called after each piece of the stream's work. Does little unless something is due.
  void Look(const EventStream& stream, const StreamChecker& checker, MonotonicNanos now);
  // The same, whether it is due or not.
  void Refresh(const EventStream& stream, const StreamChecker& checker, MonotonicNanos now);

  StreamFigures figures() const;
  const StreamAddress& address() const noexcept { return address_; }
  // As of the last look. Of the stream's thread.
  const StreamStatus& status() const noexcept { return status_; }

 private:
  static constexpr MonotonicNanos kRateWindow = 1'000'000'000;

  bool NoteStatus(const EventStream& stream, MonotonicNanos now);
  void MeasureRate(std::uint64_t events, MonotonicNanos now);

  const StreamAddress address_;
  StreamStatus status_;
  std::optional<MonotonicNanos> status_since_;
  MonotonicNanos refresh_at_ = 0;
  std::uint64_t messages_ = 0;
  std::optional<MonotonicNanos> last_message_at_;
  bool reached_ = false;
  std::uint64_t news_ = 0;
  std::optional<MonotonicNanos> last_news_at_;
  std::optional<MonotonicNanos> rate_from_;
  std::uint64_t rate_events_ = 0;
  double events_per_second_ = 0;

  mutable std::mutex mutex_;
  StreamFigures figures_;  // guarded by mutex_
};

}  // namespace kvwire
