// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/stream_metrics.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include "kv_events/escape_text.h"
#include "kv_events/subscribe/rank_group.h"

namespace kvwire::engine {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Label = ClientMetric::Label;
using F = const StreamFigures&;

constexpr MetricType kCounter = MetricType::Counter;
constexpr MetricType kGauge = MetricType::Gauge;

// A figure of each stream.
struct Metric {
  const char* name;
  const char* help;
  MetricType type;
  double (*value)(const StreamFigures& figures);
};

constexpr Metric kMetrics[] = {
    {"kvwire_stream_messages_total", "Messages received, live and replayed, well-formed or not", kCounter,
     [](F f) { return double(f.messages()); }},
    {"kvwire_stream_batches_total", "Batches applied", kCounter, [](F f) { return double(f.counts.batches); }},
    {"kvwire_stream_next_sequence", "Number of the message to apply next", kGauge, [](F f) { return double(f.next); }},
    {"kvwire_stream_duplicates_total", "Messages that were applied before", kCounter,
     [](F f) { return double(f.stream.duplicates); }},
    {"kvwire_stream_gaps_total", "Gaps in the numbers that no replay closed, late joins included", kCounter,
     [](F f) { return double(f.stream.gaps); }},
    {"kvwire_stream_missing_total", "Numbers in these gaps", kCounter, [](F f) { return double(f.stream.missing); }},
    {"kvwire_stream_healed_total", "Gaps that a replay closed", kCounter, [](F f) { return double(f.stream.healed); }},
    {"kvwire_stream_restarts_total", "Restarts of the publisher", kCounter,
     [](F f) { return double(f.stream.restarts); }},
    {"kvwire_stream_interruptions_total", "Connections lost", kCounter,
     [](F f) { return double(f.counts.interruptions); }},
    {"kvwire_stream_replays_total", "Replays asked for", kCounter,
     [](F f) { return double(f.stream.replay_attempts); }},
    {"kvwire_stream_replayed_total", "Batches that came by a replay", kCounter,
     [](F f) { return double(f.stream.replayed); }},
    {"kvwire_stream_undecodable_total", "Messages that cannot be read", kCounter,
     [](F f) { return double(f.stream.undecodable + f.stream.malformed); }},
    {"kvwire_stream_rejected_events_total", "Events of readable messages that cannot be read", kCounter,
     [](F f) { return double(f.stream.rejected_events); }},
    {"kvwire_stream_other_ranks_total", "Batches that name another rank than the stream is known for", kCounter,
     [](F f) { return double(f.counts.other_ranks); }},
    {"kvwire_stream_last_batch_timestamp_seconds", "Time that the latest batch says, in Unix seconds", kGauge,
     [](F f) { return f.last_ts; }},
};

// Different names stay different: a line twice would spoil the whole answer.
std::string NameOf(const StreamFigures& stream) { return EscapeField(stream.address.name); }

std::vector<Label> LabelsOf(const StreamFigures& stream) {
  std::vector<Label> labels{{"stream", NameOf(stream)}};
  if (stream.address.rank) labels.push_back({"dp_rank", std::to_string(*stream.address.rank)});
  return labels;
}

class Exposition {
 public:
  void Begin(const char* name, const char* help, MetricType type) {
    MetricFamily& family = families_.emplace_back();
    family.name = name;
    family.help = help;
    family.type = type;
  }
  void Add(std::vector<Label> labels, double value) {
    ClientMetric& metric = families_.back().metric.emplace_back();
    metric.label = std::move(labels);
    (families_.back().type == kCounter ? metric.counter.value : metric.gauge.value) = value;
  }
  void AddOf(const StreamFigures& stream, double value) { Add(LabelsOf(stream), value); }
  void AddOf(const StreamFigures& stream, std::vector<Label> more, double value) {
    std::vector<Label> labels = LabelsOf(stream);
    labels.insert(labels.end(), more.begin(), more.end());
    Add(std::move(labels), value);
  }
  void AddOf(const StreamFigures& stream, const char* label, std::string_view text, double value) {
    AddOf(stream, {{label, std::string(text)}}, value);
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  std::vector<MetricFamily> families_;
};

using Streams = std::span<const StreamFigures>;

double SecondsSince(MonotonicNanos then, MonotonicNanos now) { return static_cast<double>(now - then) * 1e-9; }

void AddStates(Streams streams, MonotonicNanos now, Exposition* out) {
  out->Begin("kvwire_stream_state", "1 for the state that the stream is in", kGauge);
  for (const StreamFigures& stream : streams) {
    for (std::size_t i = 0; i < kNumStreamStates; ++i) {
      const auto state = static_cast<StreamState>(i);
      out->AddOf(stream, "state", ToString(state), stream.status.state == state ? 1 : 0);
    }
  }
  out->Begin("kvwire_stream_state_seconds", "Since the state changed", kGauge);
  for (const StreamFigures& stream : streams) out->AddOf(stream, SecondsSince(stream.status_since, now));
  out->Begin("kvwire_stream_verdict", "1 for what a check would end with now", kGauge);
  for (const StreamFigures& stream : streams) {
    for (std::size_t i = 0; i < kNumCheckVerdicts; ++i) {
      const auto verdict = static_cast<CheckVerdict>(i);
      out->AddOf(stream, "verdict", ToString(verdict), stream.verdict == verdict ? 1 : 0);
    }
  }
}

void AddEvents(Streams streams, Exposition* out) {
  out->Begin("kvwire_stream_events_total", "Events applied", kCounter);
  for (const StreamFigures& stream : streams) {
    out->AddOf(stream, "kind", "stored", double(stream.counts.stored_events));
    out->AddOf(stream, "kind", "removed", double(stream.counts.removed_events));
    out->AddOf(stream, "kind", "cleared", double(stream.counts.cleared));
  }
  out->Begin("kvwire_stream_violations_total", "Breaches of a rule", kCounter);
  for (const StreamFigures& stream : streams) {
    for (std::size_t i = 0; i < kNumCheckRules; ++i) {
      out->AddOf(stream, "rule", ToString(static_cast<CheckRule>(i)), double(stream.counts.violations_by_rule[i]));
    }
  }
}

void AddBlocks(Streams streams, Exposition* out) {
  out->Begin("kvwire_stream_blocks", "Blocks that the stream says are held", kGauge);
  for (const StreamFigures& stream : streams) {
    std::optional<double> others;
    for (std::size_t i = 0; i < stream.blocks.size(); ++i) {
      const StateDigest::Entry& entry = stream.blocks[i];
      if (i >= kMaxShelves || entry.medium.size() > kMaxMediumBytes) {
        others = others.value_or(0) + double(entry.count);
        continue;
      }
      out->AddOf(stream, {{"group", std::to_string(entry.group)}, {"medium", EscapeField(entry.medium)}},
                 double(entry.count));
    }
    if (others) out->AddOf(stream, {{"group", "other"}, {"medium", "other"}}, *others);
    // So that an empty cache is not the same as no stream.
    if (stream.blocks.empty()) {
      out->AddOf(stream, {{"group", "0"}, {"medium", "GPU"}}, 0);
    }
  }
}

// A line for each rank that there should be.
void AddRanks(Streams streams, Exposition* out) {
  const std::vector<RankGroup> groups = RankGroupsOf(streams, RankPresence::kNow);
  if (groups.empty()) return;
  out->Begin("kvwire_stream_rank_missing", "1 for a rank of the instance that nobody serves now", kGauge);
  for (const RankGroup& group : groups) {
    for (const std::int64_t rank : group.ranks) {
      const bool missing = std::ranges::binary_search(group.missing, rank);
      out->Add({{"engine", EscapeField(group.instance)}, {"dp_rank", std::to_string(rank)}}, missing ? 1 : 0);
    }
  }
}

}  // namespace

std::string StreamMetricsText(Streams streams, MonotonicNanos now) {
  Exposition out;
  out.Begin("kvwire_streams", "Streams that are watched", kGauge);
  out.Add({}, double(streams.size()));
  AddRanks(streams, &out);
  AddStates(streams, now, &out);
  for (const Metric& metric : kMetrics) {
    out.Begin(metric.name, metric.help, metric.type);
    for (const StreamFigures& stream : streams) out.AddOf(stream, metric.value(stream));
  }
  out.Begin("kvwire_stream_last_message_age_seconds", "Since the latest message; no line before there is one", kGauge);
  for (const StreamFigures& stream : streams) {
    if (stream.last_message_at) out.AddOf(stream, SecondsSince(*stream.last_message_at, now));
  }
  AddEvents(streams, &out);
  AddBlocks(streams, &out);
  return out.Text();
}

}  // namespace kvwire::engine
