// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/play_player.h"

#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/subscribe/recording.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/subscribe/stream_fixture.h"

namespace kvwire::test {
namespace {

using engine::RecordingPlayer;

// Plays messages with these numbers, recorded one second apart, over scripted links.
struct Stage {
  explicit Stage(const std::vector<SequenceNumber>& numbers, double speed = 0) {
    auto writer = RecordingWriter::Create(dir / "recording");
    REQUIRE(writer.has_value());
    std::uint64_t wall = 5'000'000'000;
    for (const SequenceNumber number : numbers) {
      REQUIRE((*writer)->Append(wall, number, "kv", Payload(number, wall)).has_value());
      payloads.push_back(Payload(number, wall));
      wall += 1'000'000'000;
    }
    REQUIRE((*writer)->Close().has_value());
    auto reader = RecordingReader::Open(dir / "recording");
    REQUIRE(reader.has_value());
    RecordingPlayer::Options options;
    options.speed = speed;
    player = std::make_unique<RecordingPlayer>(options, *std::move(reader), &publish, &replay);
  }

  std::size_t sent() const { return live->sent.size(); }

  const TempDir dir;
  std::vector<Bytes> payloads;
  std::shared_ptr<Wire> live = std::make_shared<Wire>();
  std::shared_ptr<Wire> router = std::make_shared<Wire>();
  ScriptedLink publish{live};
  ScriptedLink replay{router};
  std::unique_ptr<RecordingPlayer> player;
};

TEST_CASE("a recording is played with its topics, numbers and bytes") {
  Stage stage({0, 1, 5});
  while (stage.player->DoWork(0) > 0) {
  }
  REQUIRE(stage.sent() == 3);
  CHECK(stage.live->sent[2] == InFrames{ToBytes("kv"), SequenceBytes(5), stage.payloads[2]});
  CHECK(stage.player->ended() == RecordingReader::Outcome::kEnd);
  CHECK(stage.player->messages() == 3);
}

TEST_CASE("with a speed, messages wait for their time") {
  Stage stage({0, 1, 2}, 2.0);
  stage.player->DoWork(100);
  CHECK(stage.sent() == 1);
  CHECK(stage.player->due() == 100 + 500'000'000);
  stage.player->DoWork(99 + 500'000'000);
  CHECK(stage.sent() == 1);
  stage.player->DoWork(100 + 500'000'000);
  CHECK(stage.sent() == 2);
  stage.player->DoWork(100 + 1'000'000'000);
  CHECK(stage.sent() == 3);
}

TEST_CASE("a time too far away is never, not at once") {
  Stage stage({0, 1}, 1e-300);
  stage.player->DoWork(100);
  CHECK(stage.sent() == 1);
  CHECK(stage.player->due() > std::int64_t{1} << 60);
  CHECK(stage.player->DoWork(std::int64_t{1} << 60) == 0);
}

TEST_CASE("the topic of the first message can be asked for before its clock starts") {
  Stage stage({0, 1}, 1.0);
  CHECK(stage.player->next_topic() == "kv");
  CHECK(stage.sent() == 0);
  stage.player->DoWork(5'000'000'000);
  CHECK(stage.sent() == 1);
  CHECK(stage.player->due() == 6'000'000'000);
  Stage empty({});
  CHECK_FALSE(empty.player->next_topic().has_value());
  CHECK(empty.player->ended() == RecordingReader::Outcome::kEnd);
}

TEST_CASE("a message that the socket does not take is sent later") {
  Stage stage({0, 1});
  stage.live->send_result = SendResult::kWouldBlock;
  CHECK(stage.player->DoWork(0) == 0);
  CHECK_FALSE(stage.player->ended().has_value());
  stage.live->send_result = SendResult::kSent;
  while (stage.player->DoWork(0) > 0) {
  }
  CHECK(stage.sent() == 2);
}

TEST_CASE("what was played can be asked for again, and after a recorded restart only the new life") {
  Stage stage({7, 8, 0, 1});
  const InFrames ask_all{ToBytes("peer"), {}, SequenceBytes(0)};
  while (stage.player->DoWork(0) > 0) {
  }
  stage.router->inbox.push_back(ask_all);
  while (stage.player->DoWork(0) > 0) {
  }
  CHECK(stage.router->sent ==
        std::vector<InFrames>{{ToBytes("peer"), {}, ToBytes("kv"), SequenceBytes(0), stage.payloads[2]},
                              {ToBytes("peer"), {}, ToBytes("kv"), SequenceBytes(1), stage.payloads[3]},
                              {ToBytes("peer"), {}, {}, SequenceBytes(kEndOfReplay), {}}});
  CHECK_FALSE(stage.player->replaying());
}

}  // namespace
}  // namespace kvwire::test
