// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/server_metrics.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include "kv_events/events.h"

namespace kvwire::engine {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

struct RankFigures {
  EngineThread::Figures engine;
  PublisherStats publisher;
  bool caching = true;
};

// A figure of each rank.
struct Metric {
  const char* name;
  const char* help;
  MetricType type;
  double (*value)(const RankFigures& figures);
};

double NumberOr(const std::optional<std::uint64_t>& number, double without) {
  return number ? static_cast<double>(*number) : without;
}

using F = const RankFigures&;
constexpr MetricType kCounter = MetricType::Counter;
constexpr MetricType kGauge = MetricType::Gauge;

constexpr Metric kMetrics[] = {
    {"vllm:num_requests_running", "Requests running", kGauge, [](F f) { return double(f.engine.running); }},
    {"vllm:num_requests_waiting", "Requests waiting to run", kGauge, [](F f) { return double(f.engine.waiting); }},
    {"vllm:kv_cache_usage_perc", "Blocks held by requests, 1 is all", kGauge, [](F f) { return f.engine.cache_usage; }},
    {"vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache", kCounter,
     [](F f) { return f.caching ? double(f.engine.stats.prompt_tokens) : 0.0; }},
    {"vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache", kCounter,
     [](F f) { return double(f.engine.stats.hit_tokens); }},
    {"vllm:prompt_tokens_total", "Prompt tokens of admitted requests", kCounter,
     [](F f) { return double(f.engine.stats.prompt_tokens); }},
    {"vllm:generation_tokens_total", "Tokens generated", kCounter,
     [](F f) { return double(f.engine.stats.output_tokens); }},
    {"vllm:num_preemptions_total", "Requests preempted", kCounter,
     [](F f) { return double(f.engine.stats.preemptions); }},
    {"kvwire_loads_failed_total", "Requests computed again because a block could not be loaded", kCounter,
     [](F f) { return double(f.engine.stats.failed_loads); }},
    {"kvwire_prompt_tokens_computed_total", "Prompt tokens of admitted requests that were found nowhere", kCounter,
     [](F f) { return double(f.engine.stats.computed_prompt_tokens); }},
    {"kvwire_steps_total", "Steps with at least one request", kCounter,
     [](F f) { return double(f.engine.stats.steps); }},
    {"kvwire_asleep", "1 while the engine sleeps", kGauge, [](F f) { return f.engine.asleep ? 1.0 : 0.0; }},
    {"kvwire_blocks_free", "Blocks that no request holds", kGauge, [](F f) { return double(f.engine.free_blocks); }},
    {"kvwire_blocks_stored_total", "Block hashes announced in BlockStored, reports not counted", kCounter,
     [](F f) { return double(f.engine.stats.stored); }},
    {"kvwire_blocks_reported_total", "Block hashes announced again by full reports", kCounter,
     [](F f) { return double(f.engine.stats.reported); }},
    {"kvwire_blocks_removed_total", "Block hashes in BlockRemoved", kCounter,
     [](F f) { return double(f.engine.stats.removed); }},
    {"kvwire_blocks_cleared_total", "AllBlocksCleared announced", kCounter,
     [](F f) { return double(f.engine.stats.clears); }},
    {"kvwire_kv_transfer_receptions_total", "Requests whose blocks began to come from another engine", kCounter,
     [](F f) { return double(f.engine.stats.receptions); }},
    {"kvwire_kv_transfer_failed_total", "Of these, those whose blocks did not come and were computed", kCounter,
     [](F f) { return double(f.engine.stats.failed_receptions); }},
    {"kvwire_kv_transfer_received_tokens_total", "Prompt tokens that came from another engine", kCounter,
     [](F f) { return double(f.engine.stats.received_tokens); }},
    {"kvwire_kv_transfer_receiving", "Requests that wait for their blocks", kGauge,
     [](F f) { return double(f.engine.receiving); }},
    {"kvwire_kv_transfer_held_requests_total", "Finished requests whose blocks were held for another engine", kCounter,
     [](F f) { return double(f.engine.stats.kept_requests); }},
    {"kvwire_kv_transfer_given_up_total", "Of these, those whose blocks were needed here before they were fetched",
     kCounter, [](F f) { return double(f.engine.stats.kept_given_up); }},
    {"kvwire_kv_transfer_blocks_held", "Blocks held for other engines", kGauge,
     [](F f) { return double(f.engine.kept_blocks); }},
    {"kvwire_events_total", "Events in published batches", kCounter, [](F f) { return double(f.engine.stats.events); }},
    {"kvwire_stream_suppressed_batches_total", "Batches dropped unnumbered between a loss and the Clear that heals it",
     kCounter, [](F f) { return double(f.engine.stats.stream.suppressed); }},
    {"kvwire_stream_resyncs_total", "Clears that began to announce everything again", kCounter,
     [](F f) { return double(f.engine.stats.stream.resyncs); }},
    {"kvwire_stream_renewed_blocks_total", "Blocks announced again after such a Clear", kCounter,
     [](F f) { return double(f.engine.stats.stream.renewed); }},
    {"kvwire_stream_snapshots_total", "Snapshots handed to the publisher", kCounter,
     [](F f) { return double(f.engine.stats.stream.walks); }},
    {"kvwire_stream_snapshot_blocks_total", "Blocks of snapshots handed to the publisher", kCounter,
     [](F f) { return double(f.engine.stats.stream.walked); }},
    {"kvwire_publisher_batches_submitted_total", "Batches handed to the publisher", kCounter,
     [](F f) { return double(f.publisher.submitted); }},
    {"kvwire_publisher_batches_sent_total", "Batches handed to the transport", kCounter,
     [](F f) { return double(f.publisher.sent); }},
    {"kvwire_publisher_dropped_full_total", "Batches dropped because the queue was full", kCounter,
     [](F f) { return double(f.publisher.dropped_full); }},
    {"kvwire_publisher_dropped_error_total", "Batches that could not be encoded or sent", kCounter,
     [](F f) { return double(f.publisher.dropped_error); }},
    {"kvwire_publisher_dropped_closed_total", "Batches published after the close, or left at its deadline", kCounter,
     [](F f) { return double(f.publisher.dropped_closed); }},
    {"kvwire_publisher_queued", "Batches waiting to be sent", kGauge, [](F f) { return double(f.publisher.queued); }},
    {"kvwire_publisher_queued_bytes", "Bytes of the batches waiting to be sent", kGauge,
     [](F f) { return double(f.publisher.queued_bytes); }},
    {"kvwire_publisher_sent_bytes_total", "Payload bytes handed to the transport", kCounter,
     [](F f) { return double(f.publisher.bytes_sent); }},
    {"kvwire_publisher_subscriptions", "Subscriptions to the topic", kGauge,
     [](F f) { return double(f.publisher.subscriptions); }},
    {"kvwire_publisher_subscribers_cut_total", "Connections ended for too many subscriptions", kCounter,
     [](F f) { return double(f.publisher.subscribers_cut); }},
    {"kvwire_publisher_replay_requests_total", "Replay requests answered or being answered", kCounter,
     [](F f) { return double(f.publisher.replay_requests); }},
    {"kvwire_publisher_replay_malformed_total", "Replay requests of a wrong shape", kCounter,
     [](F f) { return double(f.publisher.replay_malformed); }},
    {"kvwire_publisher_replay_dropped_total", "Replay clients given up", kCounter,
     [](F f) { return double(f.publisher.replay_dropped); }},
    {"kvwire_publisher_replay_slow_total", "Replay clients given up as too slow while others waited", kCounter,
     [](F f) { return double(f.publisher.replay_slow); }},
    {"kvwire_publisher_replay_messages_total", "Batches replayed", kCounter,
     [](F f) { return double(f.publisher.replay_messages); }},
    {"kvwire_publisher_replay_buffered", "Batches kept for replay", kGauge,
     [](F f) { return double(f.publisher.replay_buffered); }},
    {"kvwire_publisher_replay_buffered_bytes", "Bytes kept for replay", kGauge,
     [](F f) { return double(f.publisher.replay_buffered_bytes); }},
    {"kvwire_publisher_replay_oldest", "Lowest number kept for replay, -1 without any", kGauge,
     [](F f) { return NumberOr(f.publisher.replay_oldest, -1); }},
    {"kvwire_publisher_replay_newest", "Highest number kept for replay, -1 without any", kGauge,
     [](F f) { return NumberOr(f.publisher.replay_newest, -1); }},
    {"kvwire_publisher_replay_clients", "Clients of the replay endpoint that are being answered", kGauge,
     [](F f) { return double(f.publisher.replay_clients); }},
    {"kvwire_publisher_last_number", "Number of the last batch handed to the publisher, -1 before the first", kGauge,
     [](F f) { return NumberOr(f.publisher.last_number, -1); }},
    {"kvwire_publisher_encode_seconds_total", "Time spent in encoding batches", kCounter,
     [](F f) { return double(f.publisher.encode_nanos) * 1e-9; }},
    {"kvwire_publisher_send_seconds_total", "Time spent in handing batches to the transport", kCounter,
     [](F f) { return double(f.publisher.send_nanos) * 1e-9; }},
    {"kvwire_publisher_heartbeats_total", "Numbers taken by heartbeats", kCounter,
     [](F f) { return double(f.publisher.heartbeats); }},
    {"kvwire_publisher_resyncs_wanted_total", "Times the publisher asked for a stream that begins again", kCounter,
     [](F f) { return double(f.publisher.resyncs_wanted); }},
    {"kvwire_publisher_hello_requests_total", "Requests for a hello", kCounter,
     [](F f) { return double(f.publisher.hello_requests); }},
    {"kvwire_publisher_digest_requests_total", "Requests for a digest", kCounter,
     [](F f) { return double(f.publisher.digest_requests); }},
    {"kvwire_publisher_snapshot_requests_total", "Requests for a snapshot", kCounter,
     [](F f) { return double(f.publisher.snapshot_requests); }},
    {"kvwire_publisher_snapshots_sent_total", "Snapshots sent to their end", kCounter,
     [](F f) { return double(f.publisher.snapshots_sent); }},
    {"kvwire_publisher_snapshots_failed_total", "Snapshots that ended without the whole state", kCounter,
     [](F f) { return double(f.publisher.snapshots_failed); }},
    {"kvwire_publisher_snapshot_bytes", "Bytes of snapshots that wait for their clients", kGauge,
     [](F f) { return double(f.publisher.snapshot_bytes); }},
    {"kvwire_publisher_chunks_total", "Chunks of snapshot walks taken from the queue", kCounter,
     [](F f) { return double(f.publisher.chunks); }},
    {"kvwire_publisher_chunks_dropped_total", "Chunks refused by the queue, or that could not be encoded", kCounter,
     [](F f) { return double(f.publisher.chunks_dropped); }},
    {"kvwire_publisher_chunks_queued", "Chunks waiting in the queue", kGauge,
     [](F f) { return double(f.publisher.chunks_queued); }},
};

// A figure of each rank's lower tiers.
struct TierMetric {
  const char* name;
  const char* help;
  MetricType type;
  std::uint64_t scheduler::KVConnectorStats::*value;
};

using T = scheduler::KVConnectorStats;
constexpr TierMetric kTierMetrics[] = {
    {"kvwire_tier_blocks_stored_total", "Blocks stored by every worker, and announced", kCounter, &T::stored},
    {"kvwire_tier_blocks_removed_total", "Blocks that made room, or could not be loaded", kCounter, &T::removed},
    {"kvwire_tier_loads_total", "Loads of blocks that began", kCounter, &T::loaded},
    {"kvwire_tier_stores_failed_total", "Stores given up because a worker failed", kCounter, &T::failed_stores},
    {"kvwire_tier_stores_cancelled_total", "Stores given up because the device block was needed, or at a reset",
     kCounter, &T::cancelled_stores},
    {"kvwire_tier_blocks_resident", "Blocks that can be loaded", kGauge, &T::resident},
};

// Of a tier, or of the device, which is none.
std::uint64_t HitTokens(const scheduler::SchedulerStats& stats, std::string_view medium) {
  if (medium == kMediumGpu) return stats.hit_tokens;
  return medium == kMediumCpu ? stats.host_hit_tokens : stats.disk_hit_tokens;
}

ClientMetric Value(std::vector<ClientMetric::Label> labels, MetricType type, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  (type == kCounter ? metric.counter.value : metric.gauge.value) = value;
  return metric;
}

using LabelsOf = std::function<std::vector<ClientMetric::Label>(std::uint32_t rank)>;

// One line per rank and medium, also where there is no such tier.
void AddTierMetrics(const std::vector<RankFigures>& ranks, const LabelsOf& labels,
                    std::vector<MetricFamily>* families) {
  const auto add = [&](std::uint32_t rank, std::string_view medium, MetricType type, std::uint64_t value) {
    auto with_medium = labels(rank);
    with_medium.push_back({"medium", std::string(medium)});
    families->back().metric.push_back(Value(std::move(with_medium), type, static_cast<double>(value)));
  };
  for (const TierMetric& metric : kTierMetrics) {
    MetricFamily& family = families->emplace_back();
    family.name = metric.name;
    family.help = metric.help;
    family.type = metric.type;
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      const scheduler::SchedulerStats& stats = ranks[rank].engine.stats;
      add(rank, kMediumCpu, metric.type, stats.host.*metric.value);
      add(rank, kMediumDisk, metric.type, stats.disk.*metric.value);
    }
  }
  MetricFamily& hits = families->emplace_back();
  hits.name = "kvwire_prompt_tokens_hit_total";
  hits.help = "Prompt tokens found, by the lowest tier that some of it came from";
  hits.type = kCounter;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    for (const std::string_view medium : {kMediumGpu, kMediumCpu, kMediumDisk}) {
      add(rank, medium, kCounter, HitTokens(ranks[rank].engine.stats, medium));
    }
  }
}

// As Python prints it, which is what vLLM does.
const char* PythonText(bool value) { return value ? "True" : "False"; }

}  // namespace

std::string MetricsText(const Instance& instance, const ServerCounters& counters, std::string_view model_name) {
  const std::uint32_t num_ranks = instance.num_ranks();
  std::vector<RankFigures> ranks;
  for (std::uint32_t rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back(
        {instance.figures(rank), instance.publisher_stats(rank), instance.config().scheduler.enable_prefix_caching});
  }
  const auto labels = [&](std::uint32_t rank) {
    return std::vector<ClientMetric::Label>{{"engine", std::to_string(rank)}, {"model_name", std::string(model_name)}};
  };
  std::vector<MetricFamily> families;
  for (const Metric& metric : kMetrics) {
    MetricFamily& family = families.emplace_back();
    family.name = metric.name;
    family.help = metric.help;
    family.type = metric.type;
    for (std::uint32_t rank = 0; rank < num_ranks; ++rank) {
      family.metric.push_back(Value(labels(rank), metric.type, metric.value(ranks[rank])));
    }
  }

  AddTierMetrics(ranks, labels, &families);

  MetricFamily& success = families.emplace_back();
  success.name = "vllm:request_success_total";
  success.help = "Requests that ended, by how their client saw it";
  success.type = kCounter;
  for (std::uint32_t rank = 0; rank < num_ranks; ++rank) {
    for (std::size_t how = 0; how < kFinishedNames.size(); ++how) {
      auto with_reason = labels(rank);
      with_reason.push_back({"finished_reason", kFinishedNames[how]});
      success.metric.push_back(
          Value(std::move(with_reason), kCounter, static_cast<double>(counters.finished(rank, how))));
    }
  }

  MetricFamily& refused = families.emplace_back();
  refused.name = "kvwire_requests_refused_total";
  refused.help = "Requests that were not answered, by why: those that can never run, and those for another time";
  refused.type = kCounter;
  for (std::uint32_t rank = 0; rank < num_ranks; ++rank) {
    const auto add = [&](const char* reason, std::uint64_t count) {
      auto with_reason = labels(rank);
      with_reason.push_back({"reason", reason});
      refused.metric.push_back(Value(std::move(with_reason), kCounter, static_cast<double>(count)));
    };
    add("never_fits", ranks[rank].engine.stats.requests_refused);
    for (std::size_t why = 0; why < kRefusalNames.size(); ++why) add(kRefusalNames[why], counters.refused(rank, why));
  }

  const scheduler::SchedulerConfig& config = instance.config().scheduler;
  const HashIdentity& identity = instance.hasher().identity();
  MetricFamily& info = families.emplace_back();
  info.name = "vllm:cache_config_info";
  info.help = "The KV cache, as labels";
  info.type = kGauge;
  for (std::uint32_t rank = 0; rank < num_ranks; ++rank) {
    auto with_config = labels(rank);
    with_config.push_back({"block_size", std::to_string(config.block_size)});
    with_config.push_back({"enable_prefix_caching", PythonText(config.enable_prefix_caching)});
    with_config.push_back({"num_gpu_blocks", std::to_string(config.num_blocks)});
    with_config.push_back({"num_gpu_blocks_override", std::to_string(config.num_blocks)});
    with_config.push_back({"prefix_caching_hash_algo", std::string(ToString(identity.algorithm))});
    info.metric.push_back(Value(std::move(with_config), kGauge, 1));
  }

  MetricFamily& hash = families.emplace_back();
  hash.name = "kvwire_hash_info";
  hash.help = "What the hashes of blocks are made with, as labels";
  hash.type = kGauge;
  for (std::uint32_t rank = 0; rank < num_ranks; ++rank) {
    auto with_identity = labels(rank);
    with_identity.push_back({"algorithm", std::string(ToString(identity.algorithm))});
    with_identity.push_back({"seed_source", std::string(ToString(identity.seed.source))});
    with_identity.push_back({"seed", identity.seed.text.value_or("")});
    with_identity.push_back({"root", identity.root.ToHex()});
    hash.metric.push_back(Value(std::move(with_identity), kGauge, 1));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace kvwire::engine
