// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/figure_board.h"

namespace kvwire {

void FigureBoard::Look(const EventStream& stream, const StreamChecker& checker, MonotonicNanos now) {
  if (NoteStatus(stream, now) || now >= refresh_at_) Refresh(stream, checker, now);
}

// Whether the state is another one.
bool FigureBoard::NoteStatus(const EventStream& stream, MonotonicNanos now) {
  const StreamState before = std::exchange(status_, stream.status()).state;
  if (status_since_ && status_.state == before) return false;
  status_since_ = now;
  return true;
}

void FigureBoard::Refresh(const EventStream& stream, const StreamChecker& checker, MonotonicNanos now) {
  NoteStatus(stream, now);
  refresh_at_ = now + kRefresh;
  StreamFigures figures;
  figures.address = address_;
  figures.status = status_;
  figures.status_since = status_since_.value_or(now);
  figures.recovering = stream.recovering();
  figures.next = stream.next();
  figures.stream = stream.stats();
  figures.counts = checker.counts();
  figures.blocks = checker.held().digest().entries();
  figures.last_ts = checker.last_ts();
  figures.rank = checker.last_rank();
  figures.verdict = checker.Verdict();
  figures.why = checker.WhyIncomplete();
  figures.connected = stream.connected();
  const std::uint64_t messages = figures.messages();
  if (std::exchange(messages_, messages) != messages) last_message_at_ = now;
  figures.last_message_at = last_message_at_;
  reached_ = reached_ || figures.connected || last_message_at_;
  figures.reached = reached_;
  const std::uint64_t news = figures.news();
  // The first message is news, whatever it says.
  if (std::exchange(news_, news) != news || (messages > 0 && !last_news_at_)) last_news_at_ = now;
  figures.last_news_at = last_news_at_;
  MeasureRate(figures.counts.events, now);
  figures.events_per_second = events_per_second_;
  const std::lock_guard<std::mutex> lock(mutex_);
  figures_ = std::move(figures);
}

StreamFigures FigureBoard::figures() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return figures_;
}

void FigureBoard::MeasureRate(std::uint64_t events, MonotonicNanos now) {
  if (!rate_from_) rate_from_ = now;
  const MonotonicNanos window = now - *rate_from_;
  if (window < kRateWindow) return;
  events_per_second_ =
      static_cast<double>(events - std::exchange(rate_events_, events)) * 1e9 / static_cast<double>(window);
  rate_from_ = now;
}

}  // namespace kvwire
