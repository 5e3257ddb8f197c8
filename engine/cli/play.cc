// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/cli/address_option.h"
#include "engine/cli/commands.h"
#include "engine/cli/faults_option.h"
#include "engine/cli/number_options.h"
#include "engine/cli/output.h"
#include "engine/cli/play_player.h"
#include "engine/cli/stop_signal.h"
#include "engine/faults/fault_link.h"
#include "engine/faults/fault_plan.h"
#include "engine/faults/fault_script.h"
#include "kv_events/clock.h"
#include "kv_events/escape_text.h"
#include "kv_events/subscribe/recording.h"
#include "kv_events/transport/endpoint.h"
#include "kv_events/transport/zmq_context.h"
#include "kv_events/transport/zmq_link.h"

namespace kvwire::engine {

namespace {

constexpr int kExitFailed = 1;
constexpr int kExitStopped = 130;  // as a shell reports an interrupted command
constexpr MonotonicNanos kLonelyAfter = 5'000'000'000;
constexpr std::chrono::milliseconds kLook(20);
constexpr std::chrono::milliseconds kSocketLinger(2000);

struct PlayOptions {
  std::string file;
  std::string endpoint = "tcp://*:5557";
  std::string replay_endpoint;
  bool connect = false;
  bool wait_for_subscriber = false;
  double linger = 0;   // seconds
  std::string faults;  // JSON, or a file of it; empty: none
  RecordingPlayer::Options player;
};

void AddOptions(CLI::App& command, PlayOptions& options) {
  command.add_option("file", options.file, "Recording made by kvwire tap --record")->required();
  command.add_option("--endpoint", options.endpoint, "Address to publish at")->capture_default_str();
  command.add_option("--replay-endpoint", options.replay_endpoint, "Address to answer replay requests at");
  command.add_flag("--connect", options.connect, "Connect to the endpoint, where a subscriber listens");
  AddNumber(command, "--speed", &options.player.speed, "Times as fast as recorded; 0: as fast as it goes");
  AddCount(command, "--buffer-steps", &options.player.buffer_steps, {}, "Messages kept for replay");
  command.add_flag("--wait-for-subscriber", options.wait_for_subscriber,
                   "Start when somebody subscribes to the topic of the first message");
  AddSeconds(command, "--linger", &options.linger, "Serve replay requests so many seconds after the last message");
  command.add_option("--faults", options.faults, "Break the live stream on purpose: a fault script, or a file of one");
}

struct Addresses {
  Endpoint publish;
  std::optional<Endpoint> replay;
};

Result<Addresses> ParseAddresses(const PlayOptions& options) {
  constexpr std::string_view kFlag = "--endpoint";
  constexpr std::string_view kReplayFlag = "--replay-endpoint";
  const Result<Endpoint> publish = ParseAddress(options.endpoint, kFlag);
  if (!publish) return tl::unexpected<Error>(publish.error());
  if (options.connect) {
    if (const Status connects = CheckConnects(*publish, kFlag); !connects) return tl::unexpected(connects.error());
  }
  if (options.replay_endpoint.empty()) return Addresses{*publish, std::nullopt};
  const Result<Endpoint> replay = ParseAddress(options.replay_endpoint, kReplayFlag);
  if (!replay) return tl::unexpected<Error>(replay.error());
  if (AddressesMeet(*publish, *replay, options.connect ? SocketMode::kConnect : SocketMode::kBind)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{} \"{}\" and {} \"{}\" are the same address; allowed: two different ones", kFlag,
                                 options.endpoint, kReplayFlag, options.replay_endpoint));
  }
  return Addresses{*publish, *replay};
}

// Null without --faults.
Result<std::shared_ptr<const FaultScript>> ParseFaults(const std::string& argument) {
  auto script = ReadFaultScript(argument);
  if (!script || *script == nullptr) return script;
  constexpr FaultPlace kPlaces[] = {FaultPlace::kLink};
  const Status valid = (*script)->CheckPlaces(kPlaces, "play");
  if (!valid) return MakeError(valid.error().code, "--faults: " + valid.error().message);
  return script;
}

// What breaks the stream.
struct Breaker {
  FaultPlan plan{FaultPlace::kLink};
  FaultCounters counters;
  std::optional<FaultLink> link;
};

struct Play {
  std::unique_ptr<ZmqLink> publish;
  std::unique_ptr<ZmqLink> replay;
  std::unique_ptr<Breaker> breaker;  // null without faults; before publish
  std::unique_ptr<RecordingPlayer> player;
  std::optional<MonotonicNanos> alone_since;  // connected, and nobody answered yet
};

// The end that messages go to.
FrameLink* Front(const Play& play) {
  return play.breaker ? &*play.breaker->link : static_cast<FrameLink*>(play.publish.get());
}

Result<Play> Open(const PlayOptions& options) {
  auto reader = RecordingReader::Open(options.file);
  if (!reader) return tl::unexpected<Error>(reader.error());
  const Result<Addresses> addresses = ParseAddresses(options);
  if (!addresses) return tl::unexpected<Error>(addresses.error());
  const auto faults = ParseFaults(options.faults);
  if (!faults) return tl::unexpected<Error>(faults.error());
  Play play;
  LinkOptions link;
  // A recording played as fast as it goes must not outrun its watcher's pipe.
  link.send_hwm = 0;
  link.watch_peers = options.connect;
  auto publish = options.connect ? ZmqLink::Connect(ZmqContext::Shared(), LinkKind::kPub, addresses->publish, link)
                                 : ZmqLink::Bind(ZmqContext::Shared(), LinkKind::kPub, addresses->publish, link);
  if (!publish) return tl::unexpected<Error>(publish.error());
  play.publish = *std::move(publish);
  play.publish->SetLinger(kSocketLinger);
  if (addresses->replay) {
    auto replay = ZmqLink::Bind(ZmqContext::Shared(), LinkKind::kRouter, *addresses->replay, LinkOptions());
    if (!replay) return tl::unexpected<Error>(replay.error());
    play.replay = *std::move(replay);
  }
  if (options.connect) play.alone_since = SystemClock::Get().Now();
  if (*faults != nullptr) {
    play.breaker = std::make_unique<Breaker>();
    play.breaker->plan.Set(*faults);
    play.breaker->link.emplace(play.publish.get(), &play.breaker->plan, &play.breaker->counters, &SystemClock::Get());
  }
  play.player = std::make_unique<RecordingPlayer>(options.player, *std::move(reader), Front(play), play.replay.get());
  return play;
}

void Sleep(const Play& play, std::chrono::microseconds time) {
  ZmqLink* const links[] = {play.publish.get(), play.replay.get()};
  WaitForInput(links, nullptr, time);
}

void WarnAlone(Play& play) {
  play.alone_since.reset();
  PrintError("play", fmt::format("warning: nobody listens at {}, which it connects to; messages are lost until "
                                 "somebody does",
                                 play.publish->endpoint()));
}

// Once, when nobody has answered for a while.
void WarnIfAlone(Play& play) {
  if (!play.alone_since) return;
  if (play.publish->peers().connected > 0) {
    play.alone_since.reset();
  } else if (SystemClock::Get().Now() - *play.alone_since >= kLonelyAfter) {
    WarnAlone(play);
  }
}

// A subscription is the byte 1 and the topic's beginning.
bool Subscribes(const InFrames& frames, std::string_view topic) {
  if (frames.empty() || frames[0].empty() || frames[0][0] != 1) return false;
  return topic.starts_with(
      std::string_view(reinterpret_cast<const char*>(frames[0].data()), frames[0].size()).substr(1));
}

void WaitForSubscriber(Play& play) {
  const std::optional<std::string> topic = play.player->next_topic();
  while (topic && !StopRequested()) {
    WarnIfAlone(play);
    const std::optional<InFrames> frames = play.publish->TryReceive();
    if (frames && Subscribes(*frames, *topic)) return;
    if (!frames) Sleep(play, kLook);
  }
}

void Run(const PlayOptions& options, Play& play) {
  const Clock& clock = SystemClock::Get();
  std::optional<MonotonicNanos> end;
  while (!StopRequested()) {
    const MonotonicNanos now = clock.Now();
    WarnIfAlone(play);
    // Later subscriptions are of no interest, but would wake every sleep.
    for (int i = 0; i < 64 && Front(play)->TryReceive(); ++i) {
    }
    const std::optional<MonotonicNanos> held = play.breaker ? play.breaker->link->due() : std::nullopt;
    if (play.player->DoWork(now) > 0) continue;
    if (play.player->ended() && !held) {
      if (!end) end = now + NanosOf(options.linger);
      if (now >= *end && !play.player->replaying()) return;
    }
    MonotonicNanos wake = now + std::chrono::nanoseconds(kLook).count();
    if (!play.player->ended() && play.player->due() > now) wake = std::min(wake, play.player->due());
    if (held) wake = std::min(wake, std::max(*held, now));
    Sleep(play, std::chrono::microseconds((wake - now) / 1000 + 1));
  }
}

// Whether the whole recording was played, said on stderr if not.
int Outcome(const PlayOptions& options, const RecordingPlayer& player) {
  if (!player.ended()) return kExitStopped;
  switch (*player.ended()) {
    case RecordingReader::Outcome::kMessage:
    case RecordingReader::Outcome::kEnd:
      if (player.messages() > 0) return 0;
      PrintError("play", fmt::format("{} has no messages", options.file));
      return kExitFailed;
    case RecordingReader::Outcome::kTruncated:
      PrintError("play", fmt::format("{} ends inside a message, at byte {}", options.file, player.good_bytes()));
      return kExitFailed;
    case RecordingReader::Outcome::kDamaged:
      PrintError("play", fmt::format("{} is damaged at byte {}", options.file, player.good_bytes()));
      return kExitFailed;
  }
  return kExitFailed;
}

void PrintFaults(const FaultCounters& counters) {
  std::string text;
  for (const FaultKind kind : {FaultKind::kDrop, FaultKind::kDuplicate, FaultKind::kDelay, FaultKind::kUndecodable}) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", ToString(kind), counters.Of(kind));
  }
  Print(fmt::format("faults: {}\n", text));
}

int RunPlay(const PlayOptions& options) {
  Result<Play> play = Open(options);
  if (!play) {
    PrintError("play", play.error().message);
    return kExitFailed;
  }
  std::string addresses = play->publish->endpoint();
  if (play->replay) addresses += ", replay at " + play->replay->endpoint();
  Print(fmt::format("playing at {}\n", EscapeText(addresses)));
  Status written = FlushStdout();
  if (written) {
    if (options.wait_for_subscriber) WaitForSubscriber(*play);
    Run(options, *play);
    if (play->alone_since && play->publish->peers().connected == 0) WarnAlone(*play);
    Print(fmt::format("played {} messages, {} bytes of payload\n", play->player->messages(), play->player->bytes()));
    if (play->breaker) PrintFaults(play->breaker->counters);
    written = FlushStdout();
  }
  if (!written) {
    PrintError("play", written.error().message);
    return kExitFailed;
  }
  return Outcome(options, *play->player);
}

}  // namespace

void AddPlayCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("play", "Publish a recording again, byte for byte, with replay");
  const auto options = std::make_shared<PlayOptions>();
  AddOptions(*command, *options);
  command->callback([options, exit_code] { *exit_code = RunPlay(*options); });
}

}  // namespace kvwire::engine
