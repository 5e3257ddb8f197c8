// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/cli/commands.h"
#include "engine/cli/play_player.h"
#include "engine/cli/stop_signal.h"
#include "kv_events/clock.h"
#include "kv_events/subscribe/recording.h"
#include "kv_events/transport/endpoint.h"
#include "kv_events/transport/zmq_context.h"
#include "kv_events/transport/zmq_link.h"

namespace kvwire::engine {

namespace {

constexpr int kExitFailed = 1;
constexpr std::chrono::milliseconds kLook(20);
constexpr std::chrono::milliseconds kSocketLinger(2000);

struct PlayOptions {
  std::string file;
  std::string endpoint = "tcp://*:5557";
  std::string replay_endpoint;
  bool connect = false;
  bool wait_for_subscriber = false;
  double linger = 0;  // seconds
  RecordingPlayer::Options player;
};

void AddOptions(CLI::App& command, PlayOptions& options) {
  command.add_option("file", options.file, "Recording made by kvwire tap --record")->required();
  command.add_option("--endpoint", options.endpoint, "Address to publish at")->capture_default_str();
  command.add_option("--replay-endpoint", options.replay_endpoint, "Address to answer replay requests at");
  command.add_flag("--connect", options.connect, "Connect to the endpoint, where a subscriber listens");
  command.add_option("--speed", options.player.speed, "Times as fast as recorded; 0: as fast as it goes")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--buffer-steps", options.player.buffer_steps, "Messages kept for replay")->capture_default_str();
  command.add_flag("--wait-for-subscriber", options.wait_for_subscriber, "Start when somebody subscribes");
  command.add_option("--linger", options.linger, "Serve replay requests so many seconds after the last message")
      ->check(CLI::NonNegativeNumber);
}

struct Play {
  std::unique_ptr<ZmqLink> publish;
  std::unique_ptr<ZmqLink> replay;
  std::unique_ptr<RecordingPlayer> player;
};

Result<Play> Open(const PlayOptions& options) {
  auto reader = RecordingReader::Open(options.file);
  if (!reader) return tl::unexpected<Error>(reader.error());
  const Result<Endpoint> endpoint = Endpoint::Parse(options.endpoint, "--endpoint");
  if (!endpoint) return tl::unexpected<Error>(endpoint.error());
  std::optional<Endpoint> replay_endpoint;
  if (!options.replay_endpoint.empty()) {
    const Result<Endpoint> parsed = Endpoint::Parse(options.replay_endpoint, "--replay-endpoint");
    if (!parsed) return tl::unexpected<Error>(parsed.error());
    replay_endpoint = *parsed;
  }
  const std::shared_ptr<ZmqContext> context = ZmqContext::Shared();
  Play play;
  LinkOptions link;
  // A recording played as fast as it goes must not outrun its watcher's pipe.
  link.send_hwm = 0;
  auto publish = options.connect ? ZmqLink::Connect(context, LinkKind::kPub, *endpoint, link)
                                 : ZmqLink::Bind(context, LinkKind::kPub, *endpoint, link);
  if (!publish) return tl::unexpected<Error>(publish.error());
  play.publish = *std::move(publish);
  play.publish->SetLinger(kSocketLinger);
  if (replay_endpoint) {
    auto replay = ZmqLink::Bind(context, LinkKind::kRouter, *replay_endpoint, LinkOptions());
    if (!replay) return tl::unexpected<Error>(replay.error());
    play.replay = *std::move(replay);
  }
  play.player =
      std::make_unique<RecordingPlayer>(options.player, *std::move(reader), play.publish.get(), play.replay.get());
  return play;
}

void Sleep(const Play& play, std::chrono::microseconds time) {
  ZmqLink* const links[] = {play.publish.get(), play.replay.get()};
  WaitForInput(links, nullptr, time);
}

void WaitForSubscriber(const Play& play) {
  while (!StopRequested()) {
    const std::optional<InFrames> frames = play.publish->TryReceive();
    // A subscription is the byte 1 and the topic's beginning.
    if (frames && !frames->empty() && !(*frames)[0].empty() && (*frames)[0][0] == 1) return;
    if (!frames) Sleep(play, kLook);
  }
}

void Run(const PlayOptions& options, Play& play) {
  const Clock& clock = SystemClock::Get();
  std::optional<MonotonicNanos> end;
  while (!StopRequested()) {
    const MonotonicNanos now = clock.Now();
    // Later subscriptions are of no interest, but would wake every sleep.
    for (int i = 0; i < 64 && play.publish->TryReceive(); ++i) {
    }
    if (play.player->DoWork(now) > 0) continue;
    if (play.player->ended()) {
      if (!end) end = now + static_cast<MonotonicNanos>(options.linger * 1e9);
      if (now >= *end && !play.player->replaying()) return;
    }
    std::chrono::microseconds sleep = kLook;
    if (!play.player->ended() && play.player->due() > now) {
      sleep = std::min(sleep, std::chrono::microseconds((play.player->due() - now) / 1000 + 1));
    }
    Sleep(play, sleep);
  }
}

int RunPlay(const PlayOptions& options) {
  Result<Play> play = Open(options);
  if (!play) {
    fmt::print(stderr, "kvwire play: {}\n", play.error().message);
    return kExitFailed;
  }
  fmt::print("playing at {}{}{}\n", play->publish->endpoint(), play->replay ? ", replay at " : "",
             play->replay ? play->replay->endpoint() : "");
  std::fflush(stdout);
  if (options.wait_for_subscriber) WaitForSubscriber(*play);
  Run(options, *play);
  fmt::print("played {} messages, {} bytes of payload\n", play->player->messages(), play->player->bytes());
  if (!play->player->ended()) return 0;
  switch (*play->player->ended()) {
    case RecordingReader::Outcome::kMessage:
    case RecordingReader::Outcome::kEnd:
      return 0;
    case RecordingReader::Outcome::kTruncated:
      fmt::print(stderr, "kvwire play: {} ends inside a message, at byte {}\n", options.file,
                 play->player->good_bytes());
      return 0;
    case RecordingReader::Outcome::kDamaged:
      fmt::print(stderr, "kvwire play: {} is damaged at byte {}\n", options.file, play->player->good_bytes());
      return kExitFailed;
  }
  return kExitFailed;
}

}  // namespace

void AddPlayCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("play", "Publish a recording again, byte for byte, with replay");
  const auto options = std::make_shared<PlayOptions>();
  AddOptions(*command, *options);
  command->callback([options, exit_code] { *exit_code = RunPlay(*options); });
}

}  // namespace kvwire::engine
