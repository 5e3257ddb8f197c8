// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/cli/commands.h"
#include "engine/cli/hash_warning.h"
#include "engine/cli/kv_events_option.h"
#include "engine/cli/log.h"
#include "engine/cli/model_option.h"
#include "engine/cli/number_options.h"
#include "engine/cli/output.h"
#include "engine/cli/replay_report.h"
#include "engine/cli/stop_signal.h"
#include "engine/cli/tier_option.h"
#include "engine/engine_core.h"
#include "engine/simulated_runner.h"
#include "engine/trace.h"
#include "engine/trace_replay.h"
#include "kv_events/config.h"
#include "kv_events/escape_text.h"
#include "kv_events/publish/factory.h"
#include "kv_events/state_dump.h"

namespace kvwire::engine {

namespace {

constexpr int kExitFailed = 1;
constexpr int kExitStopped = 130;  // as a shell reports an interrupted command
constexpr std::uint64_t kMaxBlocks = std::uint64_t{1} << 28;
constexpr std::uint64_t kRefusalsShown = 5;

// Where a dump goes. Failing writes are reported by Close.
class DumpFile {
 public:
  static Result<std::unique_ptr<DumpFile>> Create(const std::string& path) {
    std::FILE* file = std::fopen(path.c_str(), "w");
    if (file == nullptr) return Failed(path, errno);
    return std::unique_ptr<DumpFile>(new DumpFile(path, file));
  }
  ~DumpFile() {
    if (file_ != nullptr) std::fclose(file_);
  }
  DumpFile(const DumpFile&) = delete;
  DumpFile& operator=(const DumpFile&) = delete;

  void Write(const std::string& line) {
    if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() && reason_ == 0) reason_ = errno;
  }

  // The last call.
  Status Close() {
    if (std::fclose(std::exchange(file_, nullptr)) != 0 && reason_ == 0) reason_ = errno;
    if (reason_ != 0) return Failed(path_, reason_);
    return {};
  }

 private:
  static tl::unexpected<Error> Failed(const std::string& path, int reason) {
    return MakeError(ErrorCode::kUnavailable, fmt::format("cannot write \"{}\": {}", path, std::strerror(reason)));
  }
  DumpFile(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}

  const std::string path_;
  std::FILE* file_;
  int reason_ = 0;  // of the first write that failed
};

// Ends a nap of this thread when the publisher wants something.
class Bell {
 public:
  void Ring() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      rung_ = true;
    }
    changed_.notify_one();
  }

  // Until it rings, has rung since the last nap, or the time has passed.
  void Nap(std::chrono::nanoseconds time) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, time, [this] { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool rung_ = false;  // guarded by mutex_
};

class ReplayTraceCommand {
 public:
  void AddTo(CLI::App& command);
  int Run();

 private:
  Status RunParts();
  Status OpenDumps();
  Status Build();
  Status Replay();
  void WaitForSubscriber();
  bool DoStateWork();
  void Drain();
  Status CloseDigests();
  Status DumpState();
  Status PrintReport();
  void Linger();

  std::string trace_;
  KVEventsOption events_option_;
  ModelOption model_option_;
  TierOption tier_option_;
  scheduler::SchedulerConfig scheduler_config_;
  std::string hash_algorithm_ = "sha256_cbor";
  double prefill_overhead_us_ = 0;
  double prefill_us_per_token_ = 0;
  double decode_us_per_request_ = 0;
  std::uint64_t limit_ = 0;
  double speed_ = 0;
  std::string dump_state_;
  std::string dump_digests_;
  bool wait_for_subscriber_ = false;
  double linger_seconds_ = 0;
  bool json_ = false;

  const Clock& clock_ = SystemClock::Get();
  KVEventsConfig events_;
  std::unique_ptr<DumpFile> state_file_;
  std::unique_ptr<DumpFile> digest_file_;
  std::unique_ptr<TraceReader> reader_;
  Bell bell_;  // outlives the publisher, which rings it
  std::unique_ptr<EventPublisher> publisher_;
  std::unique_ptr<EngineCore> engine_;
  ReplayReport report_;
};

void ReplayTraceCommand::AddTo(CLI::App& command) {
  scheduler::SchedulerConfig& config = scheduler_config_;
  config.num_blocks = 10000;
  command
      .add_option("trace", trace_,
                  "Trace file: a JSON object per line with timestamp, input_length, output_length, hash_ids")
      ->required();
  events_option_.AddTo(command);
  AddCount(command, "--num-blocks", &config.num_blocks, {2, kMaxBlocks},
           "Blocks of the KV cache, the null block included");
  model_option_.AddTo(command, kMaxTraceTokens);
  AddCount(command, "--max-num-seqs", &config.max_num_seqs, {1}, "Requests running at once");
  AddCount(command, "--max-num-batched-tokens", &config.max_num_batched_tokens, {1}, "Tokens computed per step");
  AddCount(command, "--num-speculative-tokens", &config.num_speculative_tokens, {0, 1024},
           "Draft tokens that a step verifies per request; about a third of them is wrong");
  tier_option_.AddTo(command);
  AddCount(command, "--max-model-len", &config.max_model_len, {2}, "Prompt and output tokens of one request");
  command.add_flag("--vllm-exact", config.vllm_exact, "Record events in vLLM's own order, one removal per copy");
  command.add_option("--prefix-caching-hash-algo", hash_algorithm_, "Identity of blocks; the seed is PYTHONHASHSEED")
      ->capture_default_str();
  AddCount(command, "--limit", &limit_, {}, "Requests to take from the trace; 0: all");
  AddNumber(command, "--speed", &speed_, "Replay trace time so many times faster; 0: as fast as it goes");
  AddNumber(command, "--prefill-overhead-us", &prefill_overhead_us_,
            "Model time of a step that computes prompt tokens");
  AddNumber(command, "--prefill-us-per-token", &prefill_us_per_token_, "Model time per uncached prompt token");
  AddNumber(command, "--decode-us-per-request", &decode_us_per_request_, "Model time of a step per decoding request");
  command.add_option("--dump-state", dump_state_,
                     "At the end, write a line \"group medium hash\" per announced resident block, sorted");
  command.add_option("--dump-digests", dump_digests_, "Write a line \"number digest\" per batch");
  command.add_flag("--wait-for-subscriber", wait_for_subscriber_, "Start when somebody subscribes to the topic");
  AddSeconds(command, "--linger", &linger_seconds_, "Serve replay requests so many seconds after the end");
  command.add_flag("--json", json_, "Print the summary as JSON");
}

int ReplayTraceCommand::Run() {
  const Status done = RunParts();
  if (engine_) engine_->Shutdown(std::chrono::milliseconds(2000));
  if (!done) {
    PrintError("replay-trace", done.error().message);
    return kExitFailed;
  }
  return report_.summary.stopped ? kExitStopped : 0;
}

Status ReplayTraceCommand::RunParts() {
  Status status = Build();
  if (!status) return status;
  status = OpenDumps();
  if (!status) return status;
  if (wait_for_subscriber_) WaitForSubscriber();
  status = Replay();
  if (!status) return status;
  Drain();
  status = CloseDigests();
  if (!status) return status;
  // The state is dumped also when nobody reads the report.
  Status printed = PrintReport();
  status = DumpState();
  if (!printed) return printed;
  if (!status) return status;
  Linger();
  return {};
}

Status ReplayTraceCommand::Build() {
  auto events = events_option_.Config();
  if (!events) return tl::unexpected<Error>(std::move(events).error());
  events_ = *std::move(events);
  // A publisher that was asked for by name has a warning of its own.
  if (!events_.enable_kv_cache_events && events_.publisher != PublisherKind::kZmq) {
    StderrLog()(LogLevel::kInfo, "KV-cache events are off (enable_kv_cache_events is false)");
  }
  if (!events_.enable_kv_cache_events && !(dump_state_ + dump_digests_).empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--dump-state and --dump-digests show what was announced; they need enable_kv_cache_events");
  }
  if (!dump_state_.empty() && dump_state_ == dump_digests_) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        fmt::format("--dump-state and --dump-digests are both \"{}\"; allowed: different files", dump_state_));
  }
  if (wait_for_subscriber_ && events_.EffectivePublisher() != PublisherKind::kZmq) {
    return MakeError(ErrorCode::kInvalidArgument, "--wait-for-subscriber needs events that are published over zmq");
  }
  if (Status model = model_option_.Apply(&scheduler_config_); !model) return model;
  if (Status told = CheckGroupsAreTold(scheduler_config_, events_); !told) return told;
  SimulatedRunner::Options runner_options;
  if (Status tiers = tier_option_.Apply(&scheduler_config_, &runner_options); !tiers) return tiers;
  const auto algorithm = ParseHashAlgorithm(hash_algorithm_);
  if (!algorithm) return tl::unexpected<Error>(algorithm.error());
  const HashSeed seed = ResolveHashSeed(*algorithm, std::nullopt, ProcessEnvironment);
  if (const auto reason = WhyHashesDiffer(*algorithm, seed, events_)) StderrLog()(LogLevel::kWarning, *reason);
  auto hasher = BlockHasher::Create(*algorithm, seed);
  if (!hasher) return tl::unexpected<Error>(std::move(hasher).error());
  auto reader = TraceReader::Open(trace_);
  if (!reader) return tl::unexpected<Error>(std::move(reader).error());
  reader_ = *std::move(reader);
  runner_options.Fit(scheduler_config_);
  runner_options.log = StderrLog();
  auto runner = SimulatedRunner::Create(runner_options);
  if (!runner) return tl::unexpected<Error>(std::move(runner).error());

  PublisherOptions publisher_options;
  publisher_options.host_wakes = true;
  publisher_options.on_state_wanted = [this] { bell_.Ring(); };
  publisher_options.log = StderrLog();
  auto publisher = CreateEventPublisher(events_, publisher_options);
  if (!publisher) return tl::unexpected<Error>(std::move(publisher).error());
  publisher_ = *std::move(publisher);

  EngineConfig config;
  config.scheduler = scheduler_config_;
  config.scheduler.enable_kv_cache_events = events_.enable_kv_cache_events;
  config.scheduler.removals = events_.kvwire.removals;
  config.scheduler.log = StderrLog();
  const auto microseconds = [](double value) { return std::chrono::nanoseconds(NanosOf(value * 1e-6)); };
  config.time_model = {microseconds(prefill_overhead_us_), microseconds(prefill_us_per_token_),
                       microseconds(decode_us_per_request_)};
  config.sleep = SleepUnlessStopped;
  config.first_batch = events_.kvwire.first_seq;
  if (!dump_digests_.empty()) {
    config.observe_batch = [this](std::uint64_t number, const KVEventBatch& batch) {
      if (digest_file_) digest_file_->Write(fmt::format("{} {}\n", number, batch.digest.ToString()));
    };
  }
  try {
    auto engine = EngineCore::Create(std::move(config), *std::move(hasher), *std::move(runner), publisher_.get());
    if (!engine) return tl::unexpected<Error>(std::move(engine).error());
    engine_ = *std::move(engine);
    return {};
  } catch (const std::bad_alloc&) {
    return MakeError(ErrorCode::kUnavailable, fmt::format("--num-blocks: {}: there is no memory for so many blocks",
                                                          scheduler_config_.num_blocks));
  }
}

Status ReplayTraceCommand::OpenDumps() {
  for (const auto& [path, file] : {std::pair(dump_state_, &state_file_), std::pair(dump_digests_, &digest_file_)}) {
    if (path.empty()) continue;
    auto opened = DumpFile::Create(path);
    if (!opened) return tl::unexpected<Error>(std::move(opened).error());
    *file = *std::move(opened);
  }
  return {};
}

Status ReplayTraceCommand::Replay() {
  ProgressLine progress(clock_);
  ReplayOptions options;
  options.limit = limit_;
  options.speed = speed_;
  options.stop = StopRequested;
  options.progress = [&progress](const ReplayProgress& now) { progress.Update(now); };
  options.sleep = SleepUnlessStopped;
  std::uint64_t refused = 0;
  options.on_refused = [&refused](const TraceRequest& request, const Error& error) {
    if (++refused > kRefusalsShown) return;
    StderrLog()(LogLevel::kWarning,
                fmt::format("trace line {} refused: {}{}", request.line, error.message,
                            refused == kRefusalsShown ? " (further refusals are only counted)" : ""));
  };
  const Result<ReplaySummary> summary = TraceReplay(reader_.get(), engine_.get(), std::move(options)).Run();
  progress.Finish();
  if (!summary) return tl::unexpected<Error>(summary.error());
  report_.summary = *summary;
  return {};
}

// Nothing is published behind it.
Status ReplayTraceCommand::CloseDigests() {
  if (!digest_file_) return {};
  const std::unique_ptr<DumpFile> file = std::move(digest_file_);
  return file->Close();
}

// A piece of what the publisher wants of the state. False if nothing can be done now.
bool ReplayTraceCommand::DoStateWork() {
  if (!engine_->HasStateWork() || engine_->StateWorkWaits()) return false;
  engine_->DoStateWork();
  return true;
}

// Until a subscription to the topic reached the publisher's socket, or a stop was asked for.
void ReplayTraceCommand::WaitForSubscriber() {
  if (const auto source = publisher_->source()) {
    StderrLog()(LogLevel::kInfo, fmt::format("waiting for a subscriber at {}", source->endpoint));
  }
  while (!StopRequested() && publisher_->stats().subscriptions == 0) {
    SleepUnlessStopped(std::chrono::milliseconds(5));
  }
}

// Until everything was handed to the sockets, and a loss healed, so that the figures are final and consumers can catch
// up. Who asks for a stop does not wait for a stuck consumer.
void ReplayTraceCommand::Drain() {
  constexpr MonotonicNanos kPatience = 30'000'000'000;
  constexpr MonotonicNanos kPatienceStopped = 500'000'000;
  const MonotonicNanos start = clock_.Now();
  publisher_->Wake();
  while ((publisher_->stats().queued != 0 || engine_->scheduler().is_healing()) &&
         clock_.Now() - start < (StopRequested() ? kPatienceStopped : kPatience)) {
    if (!DoStateWork()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Status ReplayTraceCommand::PrintReport() {
  report_.scheduler = engine_->scheduler().stats();
  report_.publisher = publisher_->stats();
  report_.times = engine_->times();
  report_.peak_memory_bytes = PeakMemoryBytes();
  Print(json_ ? ReportAsJson(report_) : ReportAsText(report_));
  return FlushStdout();
}

Status ReplayTraceCommand::DumpState() {
  if (!state_file_) return {};
  kvwire::DumpState(engine_->scheduler().state(),
                    [this](std::string_view line) { state_file_->Write(fmt::format("{}\n", line)); });
  return state_file_->Close();
}

// Snapshots are handed out all the while.
void ReplayTraceCommand::Linger() {
  constexpr std::chrono::nanoseconds kLongestNap = std::chrono::milliseconds(20);
  constexpr std::chrono::nanoseconds kNapForRoom = std::chrono::milliseconds(1);
  const std::chrono::nanoseconds time(NanosOf(linger_seconds_));
  const MonotonicNanos start = clock_.Now();
  while (!StopRequested()) {
    const std::chrono::nanoseconds left = time - std::chrono::nanoseconds(clock_.Now() - start);
    if (left.count() <= 0) return;
    if (DoStateWork()) continue;
    bell_.Nap(std::min(left, engine_->HasStateWork() ? kNapForRoom : kLongestNap));
  }
}

}  // namespace

void AddReplayTraceCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("replay-trace", "Drive an engine with a request trace and publish its events");
  const auto replay = std::make_shared<ReplayTraceCommand>();
  replay->AddTo(*command);
  command->callback([replay, exit_code] { *exit_code = replay->Run(); });
}

}  // namespace kvwire::engine
