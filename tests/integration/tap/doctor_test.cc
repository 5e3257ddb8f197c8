// SPDX-License-Identifier: Apache-2.0
// kvwire doctor as a process.
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kv_events/clock.h"
#include "tests/integration/tap/live_instance.h"
#include "tests/integration/tap/live_source.h"
#include "tests/support/child_process.h"
#include "tests/support/key_files.h"
#include "tests/support/temp_dir.h"

namespace kvwire::test {
namespace {

bool Has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

KVEventBatch FreshBatch(std::uint64_t hash) {
  KVEventBatch batch = StoreBatch(hash, std::nullopt);
  batch.ts = SystemClock::Get().WallSeconds();
  return batch;
}

// A listener that is no ZeroMQ socket. Its connections wait in the system's queue unless Greet takes one.
class PlainListener {
 public:
  PlainListener() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(listen(fd_, 8) == 0);
    socklen_t size = sizeof(address);
    REQUIRE(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    endpoint_ = fmt::format("tcp://127.0.0.1:{}", ntohs(address.sin_port));
  }
  ~PlainListener() { close(fd_); }
  PlainListener(const PlainListener&) = delete;
  PlainListener& operator=(const PlainListener&) = delete;

  // Says this to the next one that connects.
  void Greet(std::string_view words) const {
    const int connection = accept(fd_, nullptr, nullptr);
    REQUIRE(connection >= 0);
    REQUIRE(send(connection, words.data(), words.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(words.size()));
    // What was asked is read first: a reset would take the words back.
    std::array<char, 64> asked{};
    REQUIRE(recv(connection, asked.data(), asked.size(), 0) >= 0);
    close(connection);
  }
  const std::string& endpoint() const { return endpoint_; }

 private:
  const int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string endpoint_;
};

TEST_CASE("doctor finds nothing wrong with a publisher that is well") {
  Source source;
  for (std::uint64_t i = 0; i < 5; ++i) source.Publish(FreshBatch(i));
  ChildProcess doctor(KVWIRE_BINARY, {"doctor", source.info().endpoint, "--replay-endpoint",
                                      *source.info().replay_endpoint, "--topic", "kv", "--wait", "30"});
  for (std::uint64_t i = 100; doctor.ReadSome(20); ++i) source.Publish(FreshBatch(i));
  CHECK(doctor.Wait() == 0);
  const std::string& out = doctor.output();
  CAPTURE(out);
  for (const char* const check :
       {"resolved", "connected", "handshake", "replay resolved", "replay connected", "replay handshake", "direction",
        "replay socket", "subscribed", "first message", "topic", "rank", "block size", "format", "clock",
        "same publisher", "replay answer", "hello"}) {
    CHECK_MESSAGE(Has(out, fmt::format("\u2713 {:<17} ", check)), check);
  }
  CHECK(Has(out, "block size        4\n"));
  CHECK(Has(out, "topic             \"kv-events\"\n"));
  CHECK(Has(out, "rank              0\n"));
  CHECK(Has(out, "array batches of map events; hashes of 64 bits; GPU"));
  CHECK(Has(out, "messages, 0 to "));
  CHECK(Has(out, ", with topics\n"));
  CHECK(Has(out, "hello             kvwire's own: epoch "));
  CHECK(out.ends_with("all is well\n"));
}

TEST_CASE("C8: doctor sees that the replay address is another publisher's, given as ENDPOINT,REPLAY_ENDPOINT") {
  for (const bool longer : {true, false}) {
    Source source;
    Source other;
    for (std::uint64_t i = 0; i < 5; ++i) source.Publish(FreshBatch(i));
    for (std::uint64_t i = 0; longer && i < 2000; ++i) other.Publish(FreshBatch(5000 + i));
    ChildProcess doctor(KVWIRE_BINARY,
                        {"doctor", source.info().endpoint + "," + *other.info().replay_endpoint, "--wait", "30"});
    for (std::uint64_t i = 100; doctor.ReadSome(20); ++i) source.Publish(FreshBatch(i));
    CHECK(doctor.Wait() == 1);
    CAPTURE(doctor.output());
    CHECK(Has(doctor.output(), "\u2717 same publisher    "));
    CHECK(Has(doctor.output(),
              longer ? " has other bytes in the replay than it had live\n" : "the replay has nothing from message "));
    CHECK(Has(doctor.output(), "The replay address may be another publisher's"));
  }
}

TEST_CASE("J7: doctor says of a closed publisher that it is closed, and looks at it with the right keys") {
  const KeyFiles files;
  const CurveKeys publisher = NewKeys();
  const CurveKeys consumer = NewKeys();
  CurveConfig curve;
  curve.secret_key_file = files.Write("publisher.key_secret", SecretCurveCertificate(publisher));
  curve.allowed_keys_file = files.Write("allowed", consumer.public_key + "\n");
  Source source(curve);
  source.PublishChain(1, 5);
  const std::string endpoints = source.info().endpoint + "," + *source.info().replay_endpoint;
  ChildProcess stranger(KVWIRE_BINARY, {"doctor", endpoints, "--wait", "1"});
  CHECK(stranger.Wait() == 1);
  CHECK(Has(stranger.output(), "\u2717 handshake         ZMTP 3.1, mechanism CURVE\n"));
  CHECK(Has(stranger.output(), "It is closed: give its public key with --curve-server-key"));
  ChildProcess doctor(KVWIRE_BINARY, {"doctor", endpoints, "--wait", "30", "--curve-server-key",
                                      files.Write("publisher.key", PublicCurveCertificate(publisher)), "--curve-key",
                                      files.Write("consumer.key_secret", SecretCurveCertificate(consumer))});
  for (std::uint64_t i = 100; doctor.ReadSome(20); ++i) source.Publish(FreshBatch(i));
  CHECK(doctor.Wait() == 0);
  CAPTURE(doctor.output());
  for (const char* const check : {"handshake", "replay handshake", "first message", "same publisher", "hello"}) {
    CHECK_MESSAGE(Has(doctor.output(), fmt::format("\u2713 {:<17} ", check)), check);
  }
}

// A process whose errors are output, too.
std::vector<std::string> Loud(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"-c", R"(exec "$0" "$@" 2>&1)", KVWIRE_BINARY});
  return flags;
}

TEST_CASE("doctor says what it takes instead of a name to look up, or of half a replay address") {
  ChildProcess name("/bin/sh", Loud({"doctor", "dns://localhost:5557"}));
  CHECK(name.Wait() == 4);
  CHECK(Has(name.output(),
            "ENDPOINT: \"dns://localhost:5557\": doctor looks at one publisher; allowed: tcp://HOST:PORT"));
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"doctor", "tcp://127.0.0.1:5557,5558"}, {"tap", "--endpoint", "tcp://127.0.0.1:5557,5558"}}) {
    ChildProcess half("/bin/sh", Loud(flags));
    CHECK(half.Wait() == 4);
    CHECK(Has(half.output(), "; a replay address behind a comma is written in full: tcp://HOST:PORT,tcp://HOST:PORT"));
  }
}

TEST_CASE("doctor recognises swapped addresses") {
  Source source;
  ChildProcess doctor(KVWIRE_BINARY, {"doctor", *source.info().replay_endpoint, "--replay-endpoint",
                                      source.info().endpoint, "--wait", "0.1"});
  CHECK(doctor.Wait() == 1);
  CAPTURE(doctor.output());
  CHECK(Has(doctor.output(), "\u2717 direction         a socket ROUTER listens at the event endpoint\n"));
  CHECK(Has(doctor.output(), "\u2717 replay socket     a socket XPUB listens at the replay endpoint\n"));
  CHECK(Has(doctor.output(), "The two addresses are swapped"));
  CHECK(Has(doctor.output(), "- first message     not subscribed\n"));
}

TEST_CASE("doctor says what an idle engine needs, and learns the rest from its replay") {
  Source source;
  for (std::uint64_t i = 0; i < 3; ++i) source.Publish(FreshBatch(i));
  ChildProcess doctor(KVWIRE_BINARY, {"doctor", source.info().endpoint, "--replay-endpoint",
                                      *source.info().replay_endpoint, "--wait", "0.3", "--json"});
  CHECK(doctor.Wait() == 1);
  CAPTURE(doctor.output());
  CHECK(Has(doctor.output(), "{\"well\":false,\"checks\":["));
  CHECK(Has(doctor.output(),
            "{\"check\":\"first message\",\"outcome\":\"ill\",\"detail\":\"none within 0.3 s\",\"advice\":"));
  CHECK(Has(doctor.output(), "{\"check\":\"block size\",\"outcome\":\"well\",\"detail\":\"4\"}"));
  CHECK(Has(doctor.output(), "{\"check\":\"clock\",\"outcome\":\"unknown\""));
  CHECK(Has(doctor.output(), "\"detail\":\"3 messages, 0 to 2, with topics\"}"));
}

TEST_CASE("doctor says that nobody listens, and that it may be the publisher that connects") {
  const TempDir dir;
  ChildProcess doctor(KVWIRE_BINARY, {"doctor", "ipc://" + (dir / "none"), "--wait", "0.1"});
  CHECK(doctor.Wait() == 1);
  CAPTURE(doctor.output());
  CHECK(Has(doctor.output(), "none: No such file or directory\n"));
  CHECK(Has(doctor.output(), "kvwire tap --bind"));
  CHECK(Has(doctor.output(), "- handshake         not connected\n"));
}

TEST_CASE("doctor tells another service, and one that says nothing, from a publisher") {
  const PlainListener listener;
  ChildProcess doctor(KVWIRE_BINARY, {"doctor", listener.endpoint(), "--wait", "0.1"});
  listener.Greet("SSH-2.0-OpenSSH_9.2\r\n");
  CHECK(doctor.Wait() == 1);
  CAPTURE(doctor.output());
  CHECK(Has(doctor.output(), "\u2713 connected "));
  CHECK(Has(doctor.output(), "\u2717 handshake         no ZeroMQ: it begins with \"SSH-2.0-Op\"\n"));

  ChildProcess again(KVWIRE_BINARY, {"doctor", listener.endpoint(), "--wait", "0.1"});
  CHECK(again.Wait() == 1);
  CHECK(Has(again.output(), "\u2717 handshake         connected, and nothing was said\n"));
}

TEST_CASE("doctor names the topics that come when none is the one that is wanted") {
  Source source;
  ChildProcess doctor(KVWIRE_BINARY, {"doctor", source.info().endpoint, "--topic", "kv@pod", "--wait", "1"});
  for (std::uint64_t i = 0; doctor.ReadSome(20); ++i) source.Publish(FreshBatch(i));
  CHECK(doctor.Wait() == 1);
  CAPTURE(doctor.output());
  CHECK(Has(doctor.output(), "\u2717 topic             \"kv-events\", and none begins with \"kv@pod\"\n"));
}

TEST_CASE("doctor sees a clock that is wrong, and ranks that mix") {
  Source source;
  ChildProcess doctor(KVWIRE_BINARY, {"doctor", source.info().endpoint, "--replay-endpoint",
                                      *source.info().replay_endpoint, "--wait", "30"});
  for (std::uint64_t i = 0; i < 4; ++i) {
    KVEventBatch batch = FreshBatch(i);
    batch.data_parallel_rank = static_cast<std::int64_t>(i % 2);
    source.Publish(std::move(batch));
  }
  for (std::uint64_t i = 100; doctor.ReadSome(20); ++i) {
    KVEventBatch batch = FreshBatch(i);
    batch.ts -= 60;
    batch.data_parallel_rank = static_cast<std::int64_t>(i % 2);
    source.Publish(std::move(batch));
  }
  CHECK(doctor.Wait() == 1);
  CAPTURE(doctor.output());
  CHECK(Has(doctor.output(), "\u2717 rank              several in one stream: 0, 1\n"));
  CHECK(Has(doctor.output(), "\u2717 clock             the batch's time is 60."));
}

TEST_CASE("doctor takes the state that answers a replay in xllm's dialect") {
  Source source;
  ChildProcess doctor(KVWIRE_BINARY, {"doctor", source.info().endpoint, "--replay-endpoint",
                                      *source.info().replay_endpoint, "--dialect", "xllm", "--wait", "0.1"});
  CHECK(doctor.Wait() == 1);
  CAPTURE(doctor.output());
  CHECK(Has(doctor.output(), "\u2717 replay answer     the end mark alone: there was no state to give\n"));
  CHECK(Has(doctor.output(), "- hello             not asked: the dialect xllm has none\n"));
}

TEST_CASE("doctor refuses a dialect that is none, and names those that are") {
  ChildProcess doctor(KVWIRE_BINARY, {"doctor", "ipc:///a", "--dialect", "dutch"});
  CHECK(doctor.Wait() == 105);
}

TEST_CASE("doctor refuses what is no address, and names it") {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"doctor", "tcp://*:5557"}, {"doctor", "nonsense"}, {"doctor", "ipc:///a", "--replay-endpoint", "b"}}) {
    CHECK(ChildProcess(KVWIRE_BINARY, flags).Wait() == 4);
  }
  CHECK(ChildProcess(KVWIRE_BINARY, {"doctor"}).Wait() == 106);
  CHECK(ChildProcess(KVWIRE_BINARY, {"doctor", "ipc:///a", "--wait", "x"}).Wait() == 105);
}

TEST_CASE("B11: doctor --dp-size looks at each rank of an instance and names the one that is not there") {
  const TempDir dir;
  Instance instance(dir, 3, {0, 2});
  ChildProcess doctor(KVWIRE_BINARY, {"doctor", instance.endpoint(), "--replay-endpoint", instance.replay_endpoint(),
                                      "--dp-size", "3", "--wait", "30"});
  for (std::uint64_t i = 100; doctor.ReadSome(20); ++i) instance.PublishAll(FreshBatch(i));
  CHECK(doctor.Wait() == 1);
  CAPTURE(doctor.output());
  CHECK(Has(doctor.output(), "rank 1: " + instance.endpoint() + "_dp1\n"));
  CHECK(Has(doctor.output(), "all is well\nrank 1: "));
  CHECK(doctor.output().ends_with("all is well\nof 3 ranks ill: 1\n"));
}

}  // namespace
}  // namespace kvwire::test
