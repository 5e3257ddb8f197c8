// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_core.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "engine/unique_text.h"

namespace kvwire::engine {

using scheduler::RunnerOutput;
using scheduler::SchedulerOutput;
using scheduler::Tier;

// Stands between scheduler and publisher to count the batches and to time the calls. Without a publisher it discards.
class EngineCore::PublishProbe final : public EventPublisher {
 public:
  PublishProbe(EventPublisher* publisher, const EngineConfig& config)
      : publisher_(publisher), clock_(config.clock), first_batch_(config.first_batch), observe_(config.observe_batch) {}

  PublishResult Publish(KVEventBatch&& batch) noexcept override {
    if (publisher_ == nullptr) return PublishResult::kAccepted;
    if (observe_) observe_(next_number(), batch);
    const MonotonicNanos start = clock_->Now();
    const PublishResult result = publisher_->Publish(std::move(batch));
    time_ += clock_->Now() - start;
    ++batches_;
    ++handed_;
    return result;
  }
  PublishResult PublishChunk(StateChunk&& chunk) noexcept override {
    if (publisher_ == nullptr) return PublishResult::kDroppedClosed;
    const MonotonicNanos start = clock_->Now();
    const PublishResult result = publisher_->PublishChunk(std::move(chunk));
    time_ += clock_->Now() - start;
    ++handed_;
    return result;
  }
  bool HasRoom() const noexcept override { return publisher_ == nullptr || publisher_->HasRoom(); }
  StateWants state_wants() const noexcept override {
    return publisher_ == nullptr ? StateWants() : publisher_->state_wants();
  }
  bool resyncs_after_loss() const noexcept override {
    return publisher_ != nullptr && publisher_->resyncs_after_loss();
  }
  KVEventBatch TakeSpare() noexcept override {
    return publisher_ == nullptr ? KVEventBatch() : publisher_->TakeSpare();
  }
  void Wake() noexcept override {
    if (publisher_ == nullptr) return;
    const MonotonicNanos start = clock_->Now();
    publisher_->Wake();
    time_ += clock_->Now() - start;
  }
  using EventPublisher::Close;
  void Close(std::chrono::milliseconds deadline) noexcept override {
    if (publisher_ != nullptr) publisher_->Close(deadline);
  }
  PublisherStats stats() const noexcept override {
    return publisher_ == nullptr ? PublisherStats() : publisher_->stats();
  }
  std::optional<EventSourceInfo> source() const override {
    return publisher_ == nullptr ? std::nullopt : publisher_->source();
  }

  std::uint64_t batches() const noexcept { return batches_; }
  // The publisher's own heartbeats take numbers, too.
  std::uint64_t next_number() const noexcept { return first_batch_ + batches_ + stats().heartbeats; }
  std::uint64_t handed() const noexcept { return handed_; }  // batches and chunks
  std::chrono::nanoseconds time() const noexcept { return std::chrono::nanoseconds(time_); }

 private:
  EventPublisher* const publisher_;
  const Clock* const clock_;
  const std::uint64_t first_batch_;
  const std::function<void(std::uint64_t, const KVEventBatch&)> observe_;
  std::uint64_t batches_ = 0;
  std::uint64_t handed_ = 0;
  MonotonicNanos time_ = 0;
};

namespace {

// What the system would grant, and take back by killing the process, is refused here.
Status CheckMemory(const scheduler::SchedulerConfig& config) {
  constexpr double kBytesPerBlock = 120;       // of the pool, without the tokens
  constexpr double kBytesPerLowerBlock = 500;  // of the tier and of what its workers report, without the tokens of both
  constexpr double kBytesPerPart = 8;          // of a worker's part of a block, in the tier; on disk as much again
  constexpr double kGiB = 1u << 30;
  std::uint32_t block_size = config.block_size;
  for (const scheduler::KVCacheGroup& group : config.groups) block_size = std::max(block_size, group.block_size);
  double needed = config.num_blocks * (kBytesPerBlock + double{sizeof(TokenId)} * block_size);
  const double present = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (needed > present) {
    return MakeError(
        ErrorCode::kUnavailable,
        fmt::format("num_blocks: {} blocks of {} tokens need about {:.1f} GiB to keep account of; this machine "
                    "has {:.1f} GiB",
                    config.num_blocks, block_size, needed / kGiB, present / kGiB));
  }
  for (const auto& [tier, blocks, parts] :
       {std::tuple(Tier::kHost, config.host_blocks, 1), {Tier::kDisk, config.disk_blocks, 2}}) {
    const double own = blocks * (kBytesPerLowerBlock + parts * kBytesPerPart * config.tensor_parallel_size +
                                 2.0 * sizeof(TokenId) * block_size);
    if (needed + own > present) {
      return MakeError(
          ErrorCode::kUnavailable,
          fmt::format("{}: {} blocks of {} tokens need about {:.1f} GiB to keep account of, beside "
                      "{:.1f} GiB for the blocks above them; this machine has {:.1f} GiB",
                      TraitsOf(tier).option, blocks, block_size, own / kGiB, needed / kGiB, present / kGiB));
    }
    needed += own;
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::Create(EngineConfig config, BlockHasher hasher,
                                                       std::unique_ptr<scheduler::ModelRunner> runner,
                                                       EventPublisher* publisher) {
  if (const Status fits = CheckMemory(config.scheduler); !fits) return tl::unexpected<Error>(fits.error());
  if (!config.time_model.is_zero() && !config.sleep) {
    return MakeError(ErrorCode::kInvalidArgument, "a time model needs a function that passes its time");
  }
  if (config.scheduler.enable_kv_cache_events && publisher == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument, "enable_kv_cache_events is true, but there is no publisher");
  }
  auto probe = std::make_unique<PublishProbe>(publisher, config);
  auto scheduler = scheduler::Scheduler::Create(config.scheduler, std::move(hasher), probe.get(), config.clock);
  if (!scheduler) return tl::unexpected<Error>(std::move(scheduler).error());
  return std::unique_ptr<EngineCore>(
      new EngineCore(std::move(config), std::move(probe), *std::move(scheduler), std::move(runner)));
}

EngineCore::EngineCore(EngineConfig config, std::unique_ptr<PublishProbe> probe,
                       std::unique_ptr<scheduler::Scheduler> scheduler, std::unique_ptr<scheduler::ModelRunner> runner)
    : config_(std::move(config)),
      probe_(std::move(probe)),
      runner_(std::move(runner)),
      scheduler_(std::move(scheduler)),
      life_(UniqueText()) {}

EngineCore::~EngineCore() = default;

void EngineCore::Shutdown(std::chrono::milliseconds deadline) {
  scheduler_->Shutdown(deadline);
  runner_->Close();
}

EngineCore::StepResult EngineCore::Step() {
  const Clock& clock = *config_.clock;
  const std::uint64_t batches_before = probe_->batches();
  const std::uint64_t handed_before = probe_->handed();
  const std::chrono::nanoseconds event_calls_before = probe_->time();
  StepResult result;

  const MonotonicNanos start = clock.Now();
  const SchedulerOutput step = scheduler_->Schedule();
  result.num_scheduled_tokens = step.num_scheduled_tokens;
  const MonotonicNanos scheduled = clock.Now();
  RunnerOutput output = runner_->Run(step);
  PassModelTime(step, scheduled);
  const MonotonicNanos ran = clock.Now();
  result.finished = scheduler_->UpdateFromOutput(step, output);
  result.sampled = std::move(output.sampled);
  std::erase_if(result.sampled, [undone = scheduler_->undone()](const scheduler::SampledToken& token) {
    return std::ranges::find(undone, token.id) != undone.end();
  });
  const MonotonicNanos updated = clock.Now();

  times_.schedule += std::chrono::nanoseconds(scheduled - start);
  times_.run += std::chrono::nanoseconds(ran - scheduled);
  times_.update += std::chrono::nanoseconds(updated - ran) - (probe_->time() - event_calls_before);
  result.published = probe_->batches() != batches_before;
  if (probe_->handed() != handed_before) probe_->Wake();
  return result;
}

void EngineCore::PassModelTime(const SchedulerOutput& step, MonotonicNanos started) {
  if (config_.time_model.is_zero()) return;
  const std::chrono::nanoseconds left =
      config_.time_model.Duration(step) - std::chrono::nanoseconds(config_.clock->Now() - started);
  if (left.count() > 0) config_.sleep(left);
}

std::uint64_t EngineCore::batches_published() const noexcept { return probe_->batches(); }

std::uint64_t EngineCore::next_batch() const noexcept { return probe_->next_number(); }

StepTimes EngineCore::times() const noexcept {
  StepTimes times = times_;
  times.event_calls = probe_->time();
  return times;
}

}  // namespace kvwire::engine
