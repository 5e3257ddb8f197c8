// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/cli/address_option.h"
#include "engine/cli/commands.h"
#include "engine/cli/dialect_option.h"
#include "engine/cli/metrics_server.h"
#include "engine/cli/number_options.h"
#include "engine/cli/output.h"
#include "engine/cli/stop_signal.h"
#include "engine/cli/stream_options.h"
#include "engine/cli/tap_arrival.h"
#include "engine/cli/tap_many.h"
#include "engine/cli/tap_options.h"
#include "engine/cli/tap_sink.h"
#include "kv_events/clock.h"
#include "kv_events/subscribe/dialect.h"
#include "kv_events/subscribe/event_stream.h"
#include "kv_events/subscribe/figure_board.h"
#include "kv_events/subscribe/rank_group.h"
#include "kv_events/subscribe/stream_figures.h"
#include "kv_events/subscribe/watched_stream.h"
#include "kv_events/transport/endpoint.h"
#include "kv_events/transport/host_lookup.h"
#include "kv_events/transport/zmq_context.h"
#include "kv_events/transport/zmq_link.h"

namespace kvwire::engine {

namespace {

constexpr std::chrono::milliseconds kLook(20);
constexpr MonotonicNanos kEngineLimit = 5'000'000'000;

void AddOptions(CLI::App& command, TapOptions& options) {
  AddStreamOptions(command, &options.streams);
  command.add_flag("--bind", options.bind, "Listen at the endpoint, for publishers that connect");
  command.add_flag("--check", options.output.check,
                   "Hold the stream to the rules; exit code 0 clean, 1 violated, 2 incomplete, 3 silent");
  command
      .add_option("--removals", options.removals,
                  "How the source removes: exact also checks that a block leaves with all its announcements at once")
      ->check(CLI::IsMember({"exact", "per_copy"}))
      ->capture_default_str();
  command.add_option("--against", options.against,
                     "URL of the engine itself (kvwire serve --dev): compare what it holds with what the stream says, "
                     "at the same numbers; implies --check");
  AddCountFunction(
      command, "--against-rank", 0, {0, std::numeric_limits<std::uint32_t>::max()},
      [&options](std::uint64_t rank) { options.against_rank = static_cast<std::uint32_t>(rank); },
      "Data-parallel rank of this stream at that engine; else the one of --endpoint, or 0");
  AddCountFunction(
      command, "--first-seq", 0, {0, kEndOfReplay - 1},
      [&options](std::uint64_t number) { options.first_seq = number; }, "Number of a publisher's first message");
  AddDialectOption(command, &options.dialect);
  AddSeconds(command, "--until-idle", &options.until_idle,
             "End when nothing came for so many seconds after the first message (of several streams: of any), and each "
             "publisher was asked whether this is all; without a first message only --wait ends it; 0: never");
  AddSeconds(command, "--wait", &options.wait,
             "End when no first message came (of several streams: of none) within so many seconds; 0: never");
  command.add_option("--metrics", options.metrics,
                     "Answer GET /metrics at [HOST]:PORT, in Prometheus' format; on loopback unless it says a host");
  command.add_option("--record", options.output.record, "Write the messages to a file, for kvwire play");
  command.add_option("--dump-state", options.output.dump_state,
                     "At the end, write a line \"group medium hash\" per held block, sorted");
  command.add_option("--dump-digests", options.output.dump_digests, "Write a line \"number digest\" per batch");
  command.add_flag("--json", options.output.json, "Print JSON, one object a line");
  command.add_flag("--quiet", options.output.quiet, "Print no events");
  AddCount(command, "--max-events-shown", &options.output.max_events_shown, {}, "Print so many events at most");
}

struct Tap {
  std::unique_ptr<TapSink> sink;
  std::unique_ptr<EventStream> stream;
  std::string endpoint;  // in use
  std::shared_ptr<EndpointLookup> live_address;
  std::shared_ptr<EndpointLookup> replay_address;  // null without a replay endpoint
  std::string lookup_failed;                       // as it was said last
  std::unique_ptr<Arrival> live_arrival;
  std::unique_ptr<Arrival> replay_arrival;  // null without a replay endpoint
  RankNotes ranks;
  std::unique_ptr<FigureBoard> board;
  std::unique_ptr<MetricsServer> metrics;  // null: not asked for; reads the board
};

// Each file has one content.
Status CheckFiles(const TapOutput& output) {
  std::map<std::string, const char*> flags;
  for (const auto& [path, flag] : {std::pair(output.record, "--record"),
                                   {output.dump_state, "--dump-state"},
                                   {output.dump_digests, "--dump-digests"}}) {
    if (path.empty()) continue;
    const auto [known, added] = flags.emplace(path, flag);
    if (added) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{} and {} are both \"{}\"; allowed: different files", known->second, flag, path));
  }
  return {};
}

struct Addresses {
  Endpoint live;
  std::optional<Endpoint> replay;
};

Result<Addresses> ParseAddresses(const OneEndpoint& options, SocketMode mode) {
  constexpr std::string_view kFlag = "--endpoint";
  constexpr std::string_view kReplayFlag = "--replay-endpoint";
  const Result<Endpoint> live = ParseAddress(options.endpoint, kFlag);
  if (!live) return tl::unexpected<Error>(live.error());
  if (mode != SocketMode::kBind) {
    if (const Status connects = CheckConnects(*live, kFlag); !connects) {
      return MakeError(connects.error().code,
                       connects.error().message + "; or --bind, to listen for publishers that connect");
    }
  }
  if (options.replay_endpoint.empty()) return Addresses{*live, std::nullopt};
  const Result<Endpoint> replay = ParseAddress(options.replay_endpoint, kReplayFlag);
  if (!replay) return tl::unexpected<Error>(replay.error());
  if (const Status connects = CheckConnects(*replay, kReplayFlag); !connects) {
    return tl::unexpected<Error>(connects.error());
  }
  // Whoever binds the first address, tap never binds the second: as for a publisher that connects, hosts of different
  // machines are different addresses.
  if (AddressesMeet(*live, *replay, SocketMode::kConnect)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{} \"{}\" and {} \"{}\" are the same address; allowed: two different ones", kFlag,
                                 options.endpoint, kReplayFlag, options.replay_endpoint));
  }
  return Addresses{*live, *replay};
}

StreamAddress AddressOf(const Addresses& addresses, const OneEndpoint& one, const std::string& topic) {
  StreamAddress address;
  address.name = one.endpoint;
  address.endpoint = addresses.live;
  address.replay_endpoint = addresses.replay;
  address.topic = topic;
  if (one.rank) return AsRank(std::move(address), *one.rank);
  return address;
}

Result<Tap> Open(const TapOptions& options, const OneEndpoint& one) {
  if (const Status files = CheckFiles(options.output); !files) return tl::unexpected<Error>(files.error());
  if (options.against.empty() && options.against_rank) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("--against-rank: \"{}\": there is no engine to ask; allowed: only with --against URL",
                                 *options.against_rank));
  }
  if (options.bind && options.streams.curve) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--bind: given with --curve-server-key; allowed: one of them, CURVE is spoken where tap connects");
  }
  const Result<Addresses> addresses = ParseAddresses(one, options.bind ? SocketMode::kBind : SocketMode::kConnect);
  if (!addresses) return tl::unexpected<Error>(addresses.error());
  const std::shared_ptr<ZmqContext> context = ZmqContext::Shared();
  Tap tap;
  const StreamAddress address = AddressOf(*addresses, one, options.streams.topic);
  auto sink = TapSink::Create(options.OutputOf(address));
  if (!sink) return tl::unexpected<Error>(sink.error());
  tap.sink = *std::move(sink);
  if (!options.against.empty()) {
    const auto rank = static_cast<std::uint32_t>(address.rank.value_or(0));
    auto client = TruthClient::Create(options.against, options.against_rank.value_or(rank));
    if (!client) return tl::unexpected<Error>(client.error());
    tap.sink->CompareWith(*std::move(client));
  }
  WatchedStream::Options watched = options.Watched();
  // The publisher drops what does not fit at a subscriber; a watcher must not be the cause of a gap.
  watched.receive_hwm = 0;
  LinkOptions link = watched.Link();
  link.reconnect_max = {};  // one publisher is looked for as often as ZeroMQ does
  tap.live_address = std::make_shared<EndpointLookup>(addresses->live);
  std::unique_ptr<ZmqLink> first;
  if (options.bind || !tap.live_address->by_name()) {
    auto live = options.bind ? ZmqLink::Bind(context, LinkKind::kSub, addresses->live, link)
                             : ZmqLink::Connect(context, LinkKind::kSub, addresses->live, link);
    if (!live) return tl::unexpected<Error>(live.error());
    first = *std::move(live);
  }
  tap.endpoint = first ? first->endpoint() : addresses->live.ToString();
  tap.live_arrival = std::make_unique<Arrival>(tap.endpoint);
  ReplayLinkFactory replay;
  if (addresses->replay) {
    tap.replay_address = std::make_shared<EndpointLookup>(*addresses->replay);
    replay = ReplayLinksTo(context, tap.replay_address, watched.curve);
    tap.replay_arrival = std::make_unique<Arrival>(one.replay_endpoint);
  }
  if (options.bind) {
    tap.stream = std::make_unique<EventStream>(std::move(first), std::move(replay), watched.stream, tap.sink.get());
  } else {
    if (tap.live_address->by_name() || watched.curve) watched.stream.connect_patience = kNamePatience;
    tap.stream = std::make_unique<EventStream>(LiveLinksTo(context, tap.live_address, link, std::move(first)),
                                               std::move(replay), watched.stream, tap.sink.get());
  }
  tap.board = std::make_unique<FigureBoard>(address);
  return tap;
}

void Sleep(const Tap& tap) {
  HandOnStdout();
  std::array<ZmqLink*, 5> links{};
  std::ranges::transform(tap.stream->links(), links.begin(),
                         [](FrameLink* link) { return static_cast<ZmqLink*>(link); });
  WaitForInput(links, nullptr, kLook);
}

// What came so far, as the stream's figures have it.
StreamFigures FiguresOf(const Tap& tap) {
  StreamFigures figures;
  figures.stream = tap.stream->stats();
  figures.counts = tap.sink->checker().counts();
  return figures;
}

// What is wrong with a name is said when it changes.
void LookAtNames(Tap& tap) {
  std::string failed = tap.live_address->failure();
  if (failed.empty() && tap.replay_address) failed = tap.replay_address->failure();
  if (failed == tap.lookup_failed) return;
  tap.lookup_failed = failed;
  if (!failed.empty()) PrintError("tap", failed);
}

void LookAtRank(Tap& tap) {
  const auto line = tap.ranks.Look(tap.board->address(), tap.sink->checker().last_rank());
  if (line) PrintError("tap", fmt::format("{}: {}", tap.endpoint, *line));
}

// The replay endpoint is only looked at once somebody was to be asked there.
void LookForPublisher(Tap& tap, MonotonicNanos now) {
  const auto look = [now](Arrival& arrival, bool connected) {
    const auto notice = arrival.Look(connected ? Arrival::Seen::kConnected : Arrival::Seen::kNever, now);
    if (notice) PrintError("tap", *notice);
  };
  look(*tap.live_arrival, tap.stream->live_peers().connected > 0);
  const EventStreamStats stats = tap.stream->stats();
  if (tap.replay_arrival && stats.replay_attempts + stats.hellos_asked > 0) {
    look(*tap.replay_arrival, tap.stream->replay_reached());
  }
}

// One step of everything; 0 = nothing to do.
int Work(Tap& tap, MonotonicNanos now) {
  const int work = tap.stream->DoWork(now);
  tap.sink->LookAtEngine(now);
  tap.board->Look(*tap.stream, tap.sink->checker(), now);
  LookAtNames(tap);
  LookAtRank(tap);
  LookForPublisher(tap, now);
  return work;
}

// Works while the condition holds, for kAskLimit at most, and only a little longer once a stop was asked for.
void WorkWhile(Tap& tap, const std::function<bool()>& condition) {
  const Clock& clock = SystemClock::Get();
  MonotonicNanos end = clock.Now() + kAskLimit;
  bool stopping = false;
  for (MonotonicNanos now = clock.Now(); condition() && now < end; now = clock.Now()) {
    if (!stopping && StopRequested()) {
      stopping = true;
      end = std::min(end, now + kAskLimitWhenStopped);
    }
    if (Work(tap, now) == 0) Sleep(tap);
  }
}

// Asks whether what came is all, and works until that is answered.
void AskWhetherThatIsAll(Tap& tap) {
  tap.stream->Confirm();
  WorkWhile(tap, [&tap] { return tap.stream->recovering(); });
}

// A last comparison with the engine itself, of the whole set.
void AskEngineAtLast(Tap& tap) {
  const MonotonicNanos end = SystemClock::Get().Now() + kEngineLimit;
  tap.sink->FinishEngine();
  WorkWhile(tap, [&tap, end] { return !tap.sink->engine_finished() && SystemClock::Get().Now() < end; });
}

void Watch(const TapOptions& options, Tap& tap) {
  const Clock& clock = SystemClock::Get();
  MonotonicNanos last = clock.Now();
  bool heard = false;
  std::uint64_t news = 0;
  while (!StopRequested()) {
    const int work = Work(tap, clock.Now());
    // Who reads the output may have been waited for.
    const MonotonicNanos now = clock.Now();
    const StreamFigures figures = FiguresOf(tap);
    // The first message is news, whatever it says; later ones that hold nothing are signs of life.
    const bool first = !std::exchange(heard, figures.heard()) && heard;
    if (std::exchange(news, figures.news()) != figures.news() || first) last = now;
    if (work > 0) continue;
    const double limit = heard ? options.until_idle : options.wait;
    if (limit > 0 && !tap.stream->recovering() && now - last >= NanosOf(limit)) {
      if (!heard) return;
      AskWhetherThatIsAll(tap);
      if (FiguresOf(tap).news() == news) return;
      last = clock.Now();
    }
    Sleep(tap);
  }
  if (heard) AskWhetherThatIsAll(tap);
}

int RunTapOne(const TapOptions& options, const OneEndpoint& one) {
  Result<Tap> tap = Open(options, one);
  if (!tap) {
    PrintError("tap", tap.error().message);
    return kTapFailed;
  }
  auto metrics =
      ServeTapMetrics(options, [board = tap->board.get()] { return std::vector<StreamFigures>{board->figures()}; });
  if (!metrics) {
    PrintError("tap", metrics.error().message);
    return kTapFailed;
  }
  tap->metrics = *std::move(metrics);
  tap->sink->Begins(tap->endpoint, one.replay_endpoint, options.bind ? SocketMode::kBind : SocketMode::kConnect);
  Watch(options, *tap);
  AskEngineAtLast(*tap);
  LookForPublisher(*tap, SystemClock::Get().Now());
  tap->stream->Finish();
  for (const Arrival* arrival : {tap->live_arrival.get(), tap->replay_arrival.get()}) {
    if (arrival != nullptr && arrival->missing()) tap->sink->NeverConnected(arrival->address());
  }
  const Status written = tap->sink->Finish(tap->stream->stats());
  if (!written) {
    PrintError("tap", written.error().message);
    return kTapFailed;
  }
  const CheckVerdict verdict = tap->sink->Verdict();
  // Nothing received is never a pass, asked to check or not.
  const bool judged = options.output.check || !options.against.empty();
  if (judged || verdict == CheckVerdict::kSilent) return static_cast<int>(verdict);
  return 0;
}

int RunTap(const TapOptions& options) {
  const std::optional<OneEndpoint> one = OnlyEndpoint(options.streams);
  return one ? RunTapOne(options, *one) : RunTapMany(options);
}

}  // namespace

void AddTapCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("tap", "Watch, check and record a stream of KV-cache events");
  const auto options = std::make_shared<TapOptions>();
  AddOptions(*command, *options);
  command->callback([options, exit_code] { *exit_code = RunTap(*options); });
}

}  // namespace kvwire::engine
