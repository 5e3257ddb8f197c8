// SPDX-License-Identifier: Apache-2.0
// kvwire tap and kvwire play as processes, against a publisher in this one.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kv_events/config.h"
#include "kv_events/publish/factory.h"
#include "kv_events/subscribe/held_blocks.h"
#include "kv_events/subscribe/recording.h"
#include "kv_events/transport/zmq_link.h"
#include "kv_events/wire/encoder.h"
#include "kv_events/wire/frames.h"
#include "tests/integration/tap/live_source.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_dir.h"

namespace kvwire::test {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::size_t CountOf(std::string_view text, const std::string& output) {
  std::size_t count = 0;
  for (std::size_t at = output.find(text); at != std::string::npos; at = output.find(text, at + 1)) ++count;
  return count;
}

std::vector<std::string> TapArguments(const EventSourceInfo& source, std::vector<std::string> more) {
  std::vector<std::string> arguments{"tap", "--endpoint", source.endpoint, "--replay-endpoint",
                                     *source.replay_endpoint};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<RecordedMessage> ReadRecording(const std::string& path) {
  auto reader = RecordingReader::Open(path);
  REQUIRE(reader.has_value());
  std::vector<RecordedMessage> messages;
  RecordedMessage message;
  while ((*reader)->Next(&message) == RecordingReader::Outcome::kMessage) {
    message.wall_nanos = 0;
    messages.push_back(message);
  }
  return messages;
}

TEST_CASE("tap joins late, heals by replay, is clean, and its state and digests are the publisher's") {
  const TempDir dir;
  Source source;
  source.PublishChain(1, 20);
  source.Publish(RemoveBatch(20));
  ChildProcess tap(KVWIRE_BINARY, TapArguments(source.info(), {"--check", "--wait", "20", "--until-idle", "1",
                                                               "--record", dir / "record", "--dump-state",
                                                               dir / "state", "--dump-digests", dir / "digests"}));
  REQUIRE(tap.WaitFor("connecting to " + source.info().endpoint));
  REQUIRE(tap.WaitFor("confirmed: "));
  source.PublishChain(100, 50);
  CHECK(tap.Wait() == 0);
  CAPTURE(tap.output());
  CHECK(tap.output().find("BlockStored block_hashes=[0000000000000001] parent_block_hash=none tokens=4 block_size=4 "
                          "medium=GPU") != std::string::npos);
  CHECK(tap.output().find("BlockRemoved block_hashes=[0000000000000014]") != std::string::npos);
  CHECK(tap.output().find("gaps 0 (0 messages missing), healed 0,") != std::string::npos);
  CHECK(tap.output().find("\nverdict: clean\n") != std::string::npos);
  CHECK(ReadFile(dir / "state") == source.dump());
  CHECK(ReadFile(dir / "digests") == source.digests());
  const std::vector<RecordedMessage> recorded = ReadRecording(dir / "record");
  REQUIRE(recorded.size() == source.next());
  CHECK(recorded.back().sequence == source.next() - 1);
  CHECK(recorded.back().topic == "kv-events");
}

TEST_CASE("play publishes a recording again byte for byte, with replay") {
  const TempDir dir;
  {
    auto writer = RecordingWriter::Create(dir / "first");
    REQUIRE(writer.has_value());
    for (SequenceNumber number = 0; number < 300; ++number) {
      // Payloads need not be batches: play does not look into them.
      const std::vector<std::uint8_t> payload(number * 100, static_cast<std::uint8_t>(number));
      REQUIRE((*writer)->Append(1000 + number, number, "some topic", payload).has_value());
    }
    REQUIRE((*writer)->Close().has_value());
  }
  const std::vector<std::string> addresses{"ipc://" + (dir / "live"), "ipc://" + (dir / "replay")};
  ChildProcess tap(KVWIRE_BINARY, {"tap", "--endpoint", addresses[0], "--replay-endpoint", addresses[1], "--wait", "20",
                                   "--until-idle", "1", "--quiet", "--record", dir / "second"});
  REQUIRE(tap.WaitFor("connecting to"));
  ChildProcess play(KVWIRE_BINARY, {"play", dir / "first", "--endpoint", addresses[0], "--replay-endpoint",
                                    addresses[1], "--wait-for-subscriber", "--linger", "30"});
  REQUIRE(play.WaitFor("playing at " + addresses[0] + ", replay at " + addresses[1]));
  CHECK(tap.Wait() == 0);
  CHECK(ReadRecording(dir / "second") == ReadRecording(dir / "first"));

  // The replay socket still answers, from the middle.
  const auto context = ZmqContext::Create();
  const auto endpoint = Endpoint::Parse(addresses[1], "replay_endpoint");
  REQUIRE(endpoint.has_value());
  auto dealer = ZmqLink::Connect(context, LinkKind::kDealer, *endpoint, LinkOptions());
  REQUIRE(dealer.has_value());
  const SequenceFrame start = EncodeSequence(298);
  const OutFrame request[] = {OutFrame::Copy({}), OutFrame::Copy(start)};
  REQUIRE((*dealer)->TrySend(request) == SendResult::kSent);
  std::vector<InFrames> answer;
  ZmqLink* const links[] = {dealer->get()};
  for (int i = 0; i < 500 && answer.size() < 3; ++i) {
    if (auto frames = (*dealer)->TryReceive()) {
      answer.push_back(*std::move(frames));
    } else {
      WaitForInput(links, nullptr, std::chrono::milliseconds(10));
    }
  }
  REQUIRE(answer.size() == 3);
  CHECK(answer[0].size() == 4);
  CHECK(answer[0].back() == std::vector<std::uint8_t>(29800, 298 % 256));
  CHECK(answer[2].back().empty());

  play.Signal(SIGINT);
  CHECK(play.Wait() == 0);
  CHECK(play.output().find("played 300 messages") != std::string::npos);
}

TEST_CASE("tap names the rule, the event and its bytes, and ends with 1") {
  Source source;
  ChildProcess tap(KVWIRE_BINARY, TapArguments(source.info(), {"--check", "--wait", "20", "--until-idle", "1"}));
  REQUIRE(tap.WaitFor("connecting to"));
  source.PublishUntil(&tap, "BlockStored");
  source.Publish(StoreBatch(7, std::nullopt));
  source.Publish(RemoveBatch(7));
  source.Publish(RemoveBatch(7));
  CHECK(tap.Wait() == 1);
  CAPTURE(tap.output());
  CHECK(tap.output().find("violated: known-removal: message") != std::string::npos);
  CHECK(tap.output().find("removed in message") != std::string::npos);
  CHECK(tap.output().find("[83 a4 74") != std::string::npos);
  CHECK(tap.output().find("\nverdict: violated\n") != std::string::npos);
}

TEST_CASE("W11: tap counts what groups with skipped blocks may do, in either form of the summary") {
  for (const bool json : {false, true}) {
    CAPTURE(json);
    Source source;
    source.Publish(StoreBatch(1, std::nullopt));
    const std::vector<TokenId> tokens{1, 2, 3, 4, 5, 6, 7, 8};
    const BlockHash hashes[] = {BlockHash::FromUint64(2), BlockHash::FromUint64(3)};
    BlockStored stored;
    stored.token_ids = tokens;
    stored.block_size = 4;
    stored.group_idx = 1;
    stored.kv_cache_spec_kind = "sliding_window";
    stored.block_hashes = {hashes, 1};
    stored.parent_block_hash = BlockHash::FromUint64(9);
    KVEventBatch batch;
    batch.Add(stored);
    stored.block_hashes = {hashes, 2};
    batch.Add(stored);
    source.Publish(std::move(batch));
    std::vector<std::string> flags{"--check", "--quiet", "--wait", "20", "--until-idle", "0.2"};
    if (json) flags.emplace_back("--json");
    ChildProcess tap(KVWIRE_BINARY, TapArguments(source.info(), flags));
    CHECK(tap.Wait() == 0);
    CAPTURE(tap.output());
    if (json) {
      CHECK(tap.output().find("\"skipped_parents\":2") != std::string::npos);
      CHECK(tap.output().find("\"masked_events\":1") != std::string::npos);
      CHECK(tap.output().find("left_out") == std::string::npos);
    } else {
      CHECK(tap.output().find("\ngroups that skip blocks: 2 parents never announced, 1 events with tokens of skipped "
                              "blocks\n") != std::string::npos);
      CHECK(tap.output().find("left out") == std::string::npos);
    }
  }
}

TEST_CASE("tap without a baseline ends with 2") {
  Source source;
  source.PublishChain(1, 5);
  ChildProcess tap(KVWIRE_BINARY,
                   {"tap", "--endpoint", source.info().endpoint, "--check", "--wait", "20", "--until-idle", "1"});
  REQUIRE(tap.WaitFor("connecting to"));
  source.PublishUntil(&tap, "joined late: message");
  CHECK(tap.Wait() == 2);
  CHECK(tap.output().find("\nverdict: incomplete\n") != std::string::npos);
}

TEST_CASE("A2: tap that joins an idle publisher gets what was published before, and is clean") {
  Source source;
  source.PublishChain(1, 5);
  ChildProcess tap(KVWIRE_BINARY, TapArguments(source.info(), {"--check", "--wait", "20", "--until-idle", "0.2"}));
  CHECK(tap.Wait() == 0);
  CAPTURE(tap.output());
  CHECK(tap.output().find("messages 5 (5 replayed)") != std::string::npos);
}

// Recordings of two lives of a publisher, `count` messages each, and the addresses at which they are played.
struct Lives {
  Lives() : endpoint("ipc://" + (dir / "live")), replay_endpoint("ipc://" + (dir / "replay")) {
    Write("first", 1, 10);
    Write("second", 1000, 15);
  }

  void Write(const char* name, std::uint64_t hash, SequenceNumber count) const {
    auto writer = RecordingWriter::Create(dir / name);
    REQUIRE(writer.has_value());
    const BatchEncoder encoder{KVEventsConfig::Extensions()};
    for (SequenceNumber number = 0; number < count; ++number) {
      std::vector<std::uint8_t> payload;
      encoder.Encode(StoreBatch(hash + number, std::nullopt), &payload);
      REQUIRE((*writer)->Append(1, number, "kv", payload).has_value());
    }
    REQUIRE((*writer)->Close().has_value());
  }

  ChildProcess Play(const char* name) const {
    return ChildProcess(KVWIRE_BINARY, {"play", dir / name, "--endpoint", endpoint, "--replay-endpoint",
                                        replay_endpoint, "--linger", "100"});
  }
  ChildProcess Tap(std::vector<std::string> more) const {
    std::vector<std::string> arguments{"tap", "--endpoint", endpoint, "--check"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return ChildProcess(KVWIRE_BINARY, arguments);
  }

  TempDir dir;
  const std::string endpoint;
  const std::string replay_endpoint;
};

TEST_CASE("tap does not call a stream clean whose publisher was killed, with and without replay") {
  const Lives lives;
  for (const bool with_replay : {true, false}) {
    CAPTURE(with_replay);
    std::vector<std::string> more{"--until-idle", "1"};
    if (with_replay) more.insert(more.end(), {"--replay-endpoint", lives.replay_endpoint});
    ChildProcess tap = lives.Tap(more);
    REQUIRE(tap.WaitFor("connecting to"));
    ChildProcess play(KVWIRE_BINARY, {"play", lives.dir / "first", "--endpoint", lives.endpoint, "--replay-endpoint",
                                      lives.replay_endpoint, "--wait-for-subscriber", "--linger", "100"});
    REQUIRE(tap.WaitFor("     9  "));
    play.Signal(SIGKILL);
    CHECK(play.Wait() == -1);
    CHECK(tap.Wait() == 2);
    CAPTURE(tap.output());
    CHECK(tap.output().find("\ninterrupted: ") != std::string::npos);
    CHECK(tap.output().find("\nincomplete: the connection to the publisher ended after message 9") !=
          std::string::npos);
  }
}

TEST_CASE("tap does not call a stream clean whose publisher does not answer any more") {
  const Lives lives;
  ChildProcess play = lives.Play("first");
  REQUIRE(play.WaitFor("playing at"));
  ChildProcess tap = lives.Tap({"--until-idle", "1", "--replay-endpoint", lives.replay_endpoint});
  REQUIRE(tap.WaitFor("confirmed: "));
  play.Signal(SIGSTOP);
  CHECK(tap.Wait() == 2);
  CAPTURE(tap.output());
  CHECK(tap.output().find("\nunconfirmed: ") != std::string::npos);
  ChildProcess late = lives.Tap({"--wait", "1", "--replay-endpoint", lives.replay_endpoint});
  CHECK(late.Wait() == 3);
}

TEST_CASE("C14: tap notices a publisher that began anew, whatever its numbers") {
  const Lives lives;
  ChildProcess tap =
      lives.Tap({"--until-idle", "2", "--replay-endpoint", lives.replay_endpoint, "--dump-state", lives.dir / "state"});
  REQUIRE(tap.WaitFor("connecting to"));
  {
    ChildProcess play = lives.Play("first");
    REQUIRE(tap.WaitFor("     9  "));
    play.Signal(SIGKILL);
    CHECK(play.Wait() == -1);
  }
  REQUIRE(tap.WaitFor("interrupted: "));
  ChildProcess play = lives.Play("second");
  CHECK(tap.Wait() == 0);
  CAPTURE(tap.output());
  CHECK(tap.output().find("restart: after message 9: the publisher began anew") != std::string::npos);
  // Only what the second life stored is held.
  const std::string state = ReadFile(lives.dir / "state");
  CHECK(std::count(state.begin(), state.end(), '\n') == 15);
  CHECK(state.find("0 GPU 00000000000003e8\n") == 0);
}

TEST_CASE("a message that is too large ends the connection, not the tap") {
  const TempDir dir;
  const auto context = ZmqContext::Create();
  const auto endpoint = Endpoint::Parse("ipc://" + (dir / "live"), "endpoint");
  auto publisher = ZmqLink::Bind(context, LinkKind::kPub, *endpoint, LinkOptions());
  REQUIRE(publisher.has_value());
  ChildProcess tap(KVWIRE_BINARY, {"tap", "--endpoint", "ipc://" + (dir / "live"), "--check", "--until-idle", "1"});
  REQUIRE(tap.WaitFor("connecting to"));
  const auto send = [&](SequenceNumber number, const std::vector<std::uint8_t>& payload) {
    const SequenceFrame sequence = EncodeSequence(number);
    const OutFrame frames[] = {OutFrame::Copy({}), OutFrame::Copy(sequence), OutFrame::Copy(payload)};
    REQUIRE((*publisher)->TrySend(frames) == SendResult::kSent);
  };
  std::vector<std::uint8_t> payload;
  BatchEncoder(KVEventsConfig::Extensions()).Encode(StoreBatch(1, std::nullopt), &payload);
  for (SequenceNumber number = 0; number < 1000 && tap.output().find("BlockStored") == std::string::npos; ++number) {
    send(number, payload);
    REQUIRE(tap.ReadSome(10));
  }
  send(2000, std::vector<std::uint8_t>(kMaxRecordedPayload + 1));
  CHECK(tap.Wait() == 2);
  CAPTURE(tap.output());
  CHECK(tap.output().find("\ninterrupted: ") != std::string::npos);
}

// Answers every replay request with messages 0 to 9, of topic kv@a and other in turn, in either layout.
void AnswerRequests(ZmqLink* router, bool with_topics) {
  const BatchEncoder encoder{KVEventsConfig::Extensions()};
  while (const auto request = router->TryReceive()) {
    const OutFrame peer = OutFrame::Copy(request->front());
    const OutFrame empty = OutFrame::Copy({});
    const auto answer = [&](SequenceNumber number, std::string_view topic, const std::vector<std::uint8_t>& payload) {
      const SequenceFrame sequence = EncodeSequence(number);
      std::vector<OutFrame> frames{peer, empty, OutFrame::Copy(sequence), OutFrame::Copy(payload)};
      const std::vector<std::uint8_t> bytes(topic.begin(), topic.end());
      if (with_topics) frames.insert(frames.begin() + 2, OutFrame::Copy(bytes));
      REQUIRE(router->TrySend(frames) == SendResult::kSent);
    };
    for (SequenceNumber number = *DecodeSequence(request->back()); number < 10; ++number) {
      std::vector<std::uint8_t> payload;
      encoder.Encode(StoreBatch(1 + number, std::nullopt), &payload);
      answer(number, number % 2 == 0 ? "kv@a" : "other", payload);
    }
    answer(kEndOfReplay, "", {});
  }
}

TEST_CASE("C1: tap of one topic leaves out replayed messages of another one, or says that it cannot") {
  const TempDir dir;
  const auto context = ZmqContext::Create();
  const auto bind = [&](LinkKind kind, const char* name) {
    auto link = ZmqLink::Bind(context, kind, *Endpoint::Parse("ipc://" + (dir / name), "endpoint"), LinkOptions());
    REQUIRE(link.has_value());
    return *std::move(link);
  };
  for (const bool with_topics : {true, false}) {
    CAPTURE(with_topics);
    const auto publisher = bind(LinkKind::kPub, "live");
    const auto router = bind(LinkKind::kRouter, "replay");
    ChildProcess tap(KVWIRE_BINARY,
                     {"tap", "--endpoint", "ipc://" + (dir / "live"), "--replay-endpoint", "ipc://" + (dir / "replay"),
                      "--topic", "kv@", "--check", "--until-idle", "0.2", "--dump-state", dir / "state"});
    for (int i = 0; i < 3000 && tap.ReadSome(10); ++i) AnswerRequests(router.get(), with_topics);
    CHECK(tap.Wait() == 0);
    CAPTURE(tap.output());
    CHECK(tap.output().find("gaps 0 (0 messages missing)") != std::string::npos);
    const std::string state = ReadFile(dir / "state");
    if (with_topics) {
      CHECK(tap.output().find("messages 5 (5 replayed)") != std::string::npos);
      CHECK(tap.output().find("\nleft out 5 replayed messages of other topics\n") != std::string::npos);
      CHECK(tap.output().find("unfiltered: ") == std::string::npos);
      CHECK(state ==
            "0 GPU 0000000000000001\n0 GPU 0000000000000003\n0 GPU 0000000000000005\n0 GPU 0000000000000007\n"
            "0 GPU 0000000000000009\n");
    } else {
      CHECK(tap.output().find("messages 10 (10 replayed)") != std::string::npos);
      CHECK(CountOf("unfiltered: the replay names no topics", tap.output()) == 1);
    }
  }
}

TEST_CASE("A8: after a message that nobody has any more tap is incomplete and names it, and nothing is violated") {
  const TempDir dir;
  const auto context = ZmqContext::Create();
  const auto endpoint = Endpoint::Parse("ipc://" + (dir / "live"), "endpoint");
  auto publisher = ZmqLink::Bind(context, LinkKind::kPub, *endpoint, LinkOptions());
  REQUIRE(publisher.has_value());
  ChildProcess tap(KVWIRE_BINARY, {"tap", "--endpoint", "ipc://" + (dir / "live"), "--check", "--removals", "exact",
                                   "--until-idle", "1"});
  SequenceNumber next = 0;
  const auto send = [&](const KVEventBatch& batch) {
    std::vector<std::uint8_t> payload;
    BatchEncoder(KVEventsConfig::Extensions()).Encode(batch, &payload);
    const SequenceFrame sequence = EncodeSequence(next);
    const OutFrame frames[] = {OutFrame::Copy({}), OutFrame::Copy(sequence), OutFrame::Copy(payload)};
    REQUIRE((*publisher)->TrySend(frames) == SendResult::kSent);
    ++next;
  };
  while (next < 1000 && tap.output().find("BlockStored") == std::string::npos) {
    send(StoreBatch(1, std::nullopt));
    REQUIRE(tap.ReadSome(10));
  }
  send(StoreBatch(1, std::nullopt));
  const SequenceNumber lost = next++;
  send(RemoveBatch(1));    // a removal more may have been lost
  send(RemoveBatch(7));    // stored in the lost message, perhaps
  send(StoreBatch(9, 8));  // so is this parent
  CHECK(tap.Wait() == 2);
  CAPTURE(tap.output());
  CHECK(tap.output().find("violated:") == std::string::npos);
  CHECK(tap.output().find("\nviolations 0\n") != std::string::npos);
  CHECK(tap.output().find(fmt::format("message {} is missing (no replay endpoint)", lost)) != std::string::npos);
  CHECK(tap.output().find("; parents and removals not judged because of it: 3\nverdict: incomplete\n") !=
        std::string::npos);
}

// A tap whose standard error comes with its output.
ChildProcess TapWithNotices(std::vector<std::string> more) {
  std::vector<std::string> arguments{"-c", "exec \"$0\" tap \"$@\" 2>&1", KVWIRE_BINARY};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return ChildProcess("/bin/sh", arguments);
}

TEST_CASE("C4: tap says once that no publisher is there, and in the summary when none ever was") {
  const TempDir dir;
  const std::string endpoint = "ipc://" + (dir / "live");
  const std::string notice = "kvwire tap: no publisher at " + endpoint + " yet\n";
  ChildProcess tap = TapWithNotices({"--endpoint", endpoint, "--check"});
  REQUIRE(tap.WaitFor(notice));
  SUBCASE("none ever was") {
    tap.Signal(SIGINT);
    CHECK(tap.Wait() == 3);
    CHECK(tap.output().find("\nnever connected: no publisher at " + endpoint + "\n") != std::string::npos);
  }
  SUBCASE("one came") {
    const auto context = ZmqContext::Create();
    auto publisher = ZmqLink::Bind(context, LinkKind::kPub, *Endpoint::Parse(endpoint, "endpoint"), LinkOptions());
    REQUIRE(publisher.has_value());
    // Its subscription is there: so is the connection.
    ZmqLink* const links[] = {publisher->get()};
    bool subscribed = false;
    for (int i = 0; i < 500 && !subscribed; ++i) {
      subscribed = (*publisher)->TryReceive().has_value();
      if (!subscribed) WaitForInput(links, nullptr, std::chrono::milliseconds(10));
    }
    REQUIRE(subscribed);
    tap.Signal(SIGINT);
    CHECK(tap.Wait() == 3);
    CHECK(tap.output().find("never connected") == std::string::npos);
  }
  CHECK(CountOf(notice, tap.output()) == 1);
}

TEST_CASE("C4: tap says once that nobody is at the replay endpoint, when there is somebody to be asked") {
  const TempDir dir;
  Source source;
  const std::string replay = "ipc://" + (dir / "replay");
  ChildProcess tap = TapWithNotices({"--endpoint", source.info().endpoint, "--replay-endpoint", replay, "--check"});
  REQUIRE(tap.WaitFor("connecting to"));
  source.PublishUntil(&tap, "BlockStored");
  REQUIRE(tap.WaitFor("kvwire tap: no publisher at " + replay + " yet\n"));
  tap.Signal(SIGINT);
  CHECK(tap.Wait() == 2);
  CHECK(CountOf("no publisher at " + replay + " yet", tap.output()) == 1);
  CHECK(CountOf("\nnever connected: ", tap.output()) == 1);
  CHECK(CountOf("\nnever connected: no publisher at " + replay + "\n", tap.output()) == 1);
}

TEST_CASE("tap that hears nothing ends with 3, checking or not") {
  Source source;
  for (const bool check : {false, true}) {
    std::vector<std::string> more{"--wait", "0.2"};
    if (check) more.push_back("--check");
    ChildProcess tap(KVWIRE_BINARY, TapArguments(source.info(), more));
    CHECK(tap.Wait() == 3);
    CHECK((tap.output().find("\nverdict: silent\n") != std::string::npos) == check);
  }
}

TEST_CASE("tap --until-idle ends though empty batches come more often") {
  const TempDir dir;
  Source source;
  for (const bool many : {false, true}) {
    CAPTURE(many);
    std::vector<std::string> arguments{
        "tap",     "--endpoint",   source.info().endpoint + "," + *source.info().replay_endpoint,
        "--check", "--until-idle", "0.5"};
    if (many) arguments.insert(arguments.end(), {"--endpoint", "ipc://" + (dir / "nobody")});  // where nobody is
    ChildProcess tap(KVWIRE_BINARY, arguments);
    REQUIRE(tap.WaitFor("connecting to"));
    source.PublishUntil(&tap, "BlockStored");
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    bool open = true;
    while (open && std::chrono::steady_clock::now() < end) {
      source.Publish(KVEventBatch());
      open = tap.ReadSome(20);
    }
    CHECK_FALSE(open);
    CHECK(tap.Wait() == (many ? 3 : 0));
  }
}

TEST_CASE("an interrupted tap ends with the verdict so far") {
  Source source;
  ChildProcess tap(KVWIRE_BINARY, TapArguments(source.info(), {"--check", "--json"}));
  REQUIRE(tap.WaitFor("\"connecting\""));
  source.PublishUntil(&tap, "\"BlockStored\"");
  tap.Signal(SIGINT);
  CHECK(tap.Wait() == 0);
  CAPTURE(tap.output());
  CHECK(tap.output().find("\"verdict\":\"clean\"") != std::string::npos);
  CHECK(tap.output().find("{\"summary\":{") != std::string::npos);
}

// A command of kvwire that writes to a pipe of two pages that nobody reads.
class Unread {
 public:
  Unread(const TempDir& dir, const std::string& arguments) : path_(dir / "unread") {
    REQUIRE(mkfifo(path_.c_str(), 0600) == 0);
    fd_ = open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    REQUIRE(fd_ >= 0);
    fcntl(fd_, F_SETPIPE_SZ, 8192);
    const std::string script =
        fmt::format("'{}' {} >'{}' 2>&1 & echo pid $!; wait $!; echo ended $?", KVWIRE_BINARY, arguments, path_);
    shell_ = std::make_unique<ChildProcess>("/bin/sh", std::vector<std::string>{"-c", script});
    REQUIRE(shell_->WaitFor("\n"));
    pid_ = std::stoi(shell_->output().substr(std::string_view("pid ").size()));
  }
  Unread(const Unread&) = delete;
  Unread& operator=(const Unread&) = delete;
  ~Unread() {
    if (!ended_) kill(pid_, SIGKILL);
    close(fd_);
  }
  int bytes() const {
    int count = 0;
    ioctl(fd_, FIONREAD, &count);
    return count;
  }
  // What the shell says of it once it was told to stop; empty if that takes ten seconds.
  std::string Stop() {
    kill(pid_, SIGTERM);
    ended_ = shell_->WaitFor("ended ");
    shell_->ReadSome(1000);
    return ended_ ? shell_->output().substr(shell_->output().find("ended ")) : std::string();
  }

 private:
  const std::string path_;
  int fd_ = -1;
  pid_t pid_ = -1;
  bool ended_ = false;
  std::unique_ptr<ChildProcess> shell_;
};

TEST_CASE("tap and top end when they are told to, and not with success, though nobody reads what they print") {
  Source source;
  for (const char* const form : {"tap --check", "tap --json", "top --interval 0.05"}) {
    CAPTURE(form);
    const TempDir own;
    Unread command(own, fmt::format("{} --endpoint {}", form, source.info().endpoint));
    // Until nothing more goes into the pipe, though there is more to say.
    using SteadyClock = std::chrono::steady_clock;
    const auto end = SteadyClock::now() + std::chrono::seconds(30);
    auto grown = SteadyClock::now();
    int bytes = 0;
    while (SteadyClock::now() < end && (bytes <= 4096 || SteadyClock::now() - grown < std::chrono::seconds(1))) {
      source.PublishChain(source.next() * 10 + 1, 5);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (std::exchange(bytes, command.bytes()) != bytes) grown = SteadyClock::now();
    }
    CHECK(command.bytes() > 4096);
    CHECK(command.Stop() == "ended 4\n");
  }
}

TEST_CASE("addresses that tap cannot use are refused by name") {
  ChildProcess wildcard(KVWIRE_BINARY, {"tap", "--endpoint", "tcp://*:5557"});
  CHECK(wildcard.Wait() == 4);
  ChildProcess inproc(KVWIRE_BINARY, {"tap", "--endpoint", "inproc://x"});
  CHECK(inproc.Wait() == 4);
  ChildProcess no_port(KVWIRE_BINARY, {"tap", "--wait", "0.1", "--endpoint", "tcp://localhost:0"});
  CHECK(no_port.Wait() == 4);
  // One machine has several names.
  ChildProcess same(KVWIRE_BINARY, {"tap", "--wait", "0.1", "--endpoint", "tcp://localhost:5557", "--replay-endpoint",
                                    "tcp://127.0.0.1:5557"});
  CHECK(same.Wait() == 4);
  ChildProcess own(KVWIRE_BINARY, {"tap", "--wait", "0.1", "--bind", "--endpoint", "tcp://*:5557", "--replay-endpoint",
                                   "tcp://localhost:5557"});
  CHECK(own.Wait() == 4);
}

TEST_CASE("tap that cannot listen or write ends with 4") {
  const TempDir dir;
  ChildProcess taken(KVWIRE_BINARY, {"tap", "--bind", "--endpoint", "ipc://" + (dir / "socket")});
  REQUIRE(taken.WaitFor("listening on ipc://"));
  ChildProcess second(KVWIRE_BINARY, {"tap", "--bind", "--endpoint", "ipc://" + (dir / "socket")});
  CHECK(second.Wait() == 4);
  ChildProcess unwritable(KVWIRE_BINARY, {"tap", "--wait", "0.1", "--record", dir / "no/such/file"});
  CHECK(unwritable.Wait() == 4);
  ChildProcess no_state(KVWIRE_BINARY, {"tap", "--wait", "0.1", "--dump-state", dir / "no/such/file"});
  CHECK(no_state.Wait() == 4);
}

}  // namespace
}  // namespace kvwire::test
