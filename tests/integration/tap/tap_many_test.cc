// SPDX-License-Identifier: Apache-2.0
// kvwire tap with several streams and with --metrics, as a process.
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "engine/http/http_call.h"
#include "tests/integration/tap/live_instance.h"
#include "tests/integration/tap/live_source.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_dir.h"

namespace kvwire::test {
namespace {

using engine::HttpCall;
using engine::HttpMethod;

bool Has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// The address that the process printed behind "metrics on http://".
std::string MetricsAddress(ChildProcess* process) {
  constexpr std::string_view kWord = "metrics on http://";
  REQUIRE(process->WaitFor("/metrics\n"));
  const std::size_t begin = process->output().find(kWord) + kWord.size();
  return process->output().substr(begin, process->output().find("/metrics\n") - begin);
}

std::string Scrape(const std::string& address) {
  HttpCall call;
  call.method = HttpMethod::kGet;
  const std::size_t colon = address.rfind(':');
  call.host = address.substr(0, colon);
  call.port = static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1)));
  call.path = "/metrics";
  const auto reply = engine::Call(call);
  REQUIRE_MESSAGE(reply.has_value(), reply.error());
  CHECK(reply->status == 200);
  return reply->body;
}

// Scrapes until the answer has this part.
std::string ScrapeUntil(const std::string& address, std::string_view part) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::string text = Scrape(address);
  while (!Has(text, part) && std::chrono::steady_clock::now() < end) text = Scrape(address);
  CAPTURE(text);
  CHECK_MESSAGE(Has(text, part), std::string(part));
  return text;
}

std::string EndpointPair(const Source& source) { return source.info().endpoint + "," + *source.info().replay_endpoint; }

TEST_CASE("tap --metrics serves the figures of its stream, of every state and rule, on loopback") {
  Source source;
  source.PublishChain(1, 20);
  source.Publish(RemoveBatch(20));
  ChildProcess tap(KVWIRE_BINARY, {"tap", "--endpoint", EndpointPair(source), "--check", "--quiet", "--metrics", "0"});
  const std::string address = MetricsAddress(&tap);
  CHECK(address.starts_with("127.0.0.1:"));
  const std::string label = fmt::format("stream=\"{}\"", source.info().endpoint);
  const std::string text = ScrapeUntil(address, fmt::format("kvwire_stream_next_sequence{{{}}} 21\n", label));
  CHECK(Has(text, "kvwire_streams 1\n"));
  for (const char* const state : {"connecting", "unsynchronised", "recovering", "suspect"}) {
    CHECK(Has(text, fmt::format("kvwire_stream_state{{{},state=\"{}\"}} 0\n", label, state)));
  }
  CHECK(Has(text, fmt::format("kvwire_stream_state{{{},state=\"synchronised\"}} 1\n", label)));
  CHECK(Has(text, fmt::format("kvwire_stream_messages_total{{{}}} 21\n", label)));
  CHECK(Has(text, fmt::format("kvwire_stream_events_total{{{},kind=\"stored\"}} 20\n", label)));
  CHECK(Has(text, fmt::format("kvwire_stream_events_total{{{},kind=\"removed\"}} 1\n", label)));
  CHECK(Has(text, fmt::format("kvwire_stream_events_total{{{},kind=\"cleared\"}} 0\n", label)));
  CHECK(Has(text, fmt::format("kvwire_stream_blocks{{{},group=\"0\",medium=\"GPU\"}} 19\n", label)));
  CHECK(Has(text, fmt::format("kvwire_stream_replayed_total{{{}}} 21\n", label)));
  CHECK(Has(text, fmt::format("kvwire_stream_verdict{{{},verdict=\"clean\"}} 1\n", label)));
  CHECK(Has(text, fmt::format("kvwire_stream_last_message_age_seconds{{{}}} ", label)));
  CHECK(Has(text, fmt::format("kvwire_stream_violations_total{{{},rule=\"known-removal\"}} 0\n", label)));

  source.Publish(RemoveBatch(20));
  ScrapeUntil(address, fmt::format("kvwire_stream_violations_total{{{},rule=\"known-removal\"}} 1\n", label));
  tap.Signal(SIGTERM);
  CHECK(tap.Wait() == 1);
}

TEST_CASE("clients of --metrics that do not end their request do not keep others out") {
  Source source;
  ChildProcess tap(KVWIRE_BINARY, {"tap", "--endpoint", source.info().endpoint, "--metrics", "127.0.0.1:0", "--quiet"});
  const std::string address = MetricsAddress(&tap);
  sockaddr_in server{};
  server.sin_family = AF_INET;
  server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  server.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  std::vector<int> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(connect(clients.back(), reinterpret_cast<const sockaddr*>(&server), sizeof(server)) == 0);
    REQUIRE(send(clients.back(), "GET /metrics HT", 15, MSG_NOSIGNAL) == 15);
  }
  // Each is given up long before a scraper's patience ends.
  const timeval patience{5, 0};
  for (const int client : clients) {
    setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    char answer[4096];
    ssize_t got = 1;
    while (got > 0) got = recv(client, answer, sizeof(answer), 0);
    CHECK((got == 0 || errno == ECONNRESET));
    close(client);
  }
  CHECK(Has(Scrape(address), "kvwire_stream_"));
}

TEST_CASE("tap with several streams names them, judges each, and ends with the worst verdict") {
  Source good;
  Source bad;
  good.PublishChain(1, 5);
  bad.PublishChain(1, 5);
  bad.Publish(RemoveBatch(77));
  ChildProcess tap(KVWIRE_BINARY, {"tap", "--endpoint", EndpointPair(good), "--endpoint", EndpointPair(bad), "--check",
                                   "--wait", "20", "--until-idle", "0.5"});
  CHECK(tap.Wait() == 1);
  CAPTURE(tap.output());
  const std::string& out = tap.output();
  CHECK(Has(out, fmt::format("{}  connecting to {}, replay from {}\n", good.info().endpoint, good.info().endpoint,
                             *good.info().replay_endpoint)));
  CHECK(Has(out, good.info().endpoint + "       0  1700000000.250"));
  CHECK(Has(out, bad.info().endpoint + "  violated: known-removal: message 5"));
  CHECK(Has(out, bad.info().endpoint + "  verdict: violated\n"));
  CHECK(Has(out, good.info().endpoint + "  verdict: clean\n"));
  CHECK(out.ends_with("streams 2, clean 1, violated 1, incomplete 0, silent 0\nverdict: violated\n"));
  // Every line says whose it is, but the last two.
  std::size_t lines = 0;
  for (std::size_t at = 0; at < out.size(); at = out.find('\n', at) + 1) {
    lines += out.compare(at, 6, "tcp://") == 0 ? 0 : 1;
  }
  CHECK(lines == 2);
}

TEST_CASE("tap with several streams prints JSON with the stream's name first") {
  Source one;
  Source two;
  one.PublishChain(1, 2);
  ChildProcess tap(KVWIRE_BINARY, {"tap", "--endpoint", EndpointPair(one), "--endpoint", EndpointPair(two), "--json",
                                   "--check", "--wait", "20", "--until-idle", "0.5"});
  CHECK(tap.Wait() == 3);  // two said nothing
  CAPTURE(tap.output());
  CHECK(Has(tap.output(), fmt::format("{{\"stream\":\"{}\",\"seq\":0,", one.info().endpoint)));
  CHECK(Has(tap.output(), fmt::format("{{\"stream\":\"{}\",\"summary\":", two.info().endpoint)));
  CHECK(Has(tap.output(),
            "{\"streams\":2,\"verdicts\":{\"clean\":1,\"violated\":0,\"incomplete\":0,\"silent\":1},\"verdict\":"
            "\"silent\"}\n"));
}

TEST_CASE("a file of streams is read again when it changes, and a bad line keeps what was") {
  const TempDir dir;
  const std::string file = dir / "streams.txt";
  const auto write = [&file](const std::string& text) {
    std::ofstream(file + ".new") << text;
    REQUIRE(std::rename((file + ".new").c_str(), file.c_str()) == 0);
  };
  Source a;
  Source b;
  a.PublishChain(1, 3);
  b.PublishChain(1, 4);
  const auto line = [](const Source& source, const char* name) {
    return fmt::format("{} {} - {}\n", source.info().endpoint, *source.info().replay_endpoint, name);
  };
  write("# one engine\n" + line(a, "a"));
  ChildProcess tap(KVWIRE_BINARY, {"tap", "--endpoints-file", file, "--quiet", "--check", "--metrics", "127.0.0.1:0"});
  const std::string address = MetricsAddress(&tap);
  ScrapeUntil(address, "kvwire_stream_next_sequence{stream=\"a\"} 3\n");
  write(line(a, "a") + line(b, "b"));
  ScrapeUntil(address, "kvwire_stream_next_sequence{stream=\"b\"} 4\n");
  write(line(b, "b") + "tcp://nowhere\n");
  a.PublishChain(10, 2);
  ScrapeUntil(address, "kvwire_stream_next_sequence{stream=\"a\"} 5\n");
  write(line(b, "b"));
  const std::string text = ScrapeUntil(address, "kvwire_streams 1\n");
  CHECK_FALSE(Has(text, "stream=\"a\""));
  REQUIRE(tap.WaitFor("a  verdict: clean\n"));
  tap.Signal(SIGINT);
  CHECK(tap.Wait() == 0);
  CAPTURE(tap.output());
  CHECK(Has(tap.output(), "b  verdict: clean\n"));
  CHECK(tap.output().ends_with("streams 2, clean 2, violated 0, incomplete 0, silent 0\nverdict: clean\n"));
}

TEST_CASE("every address of a name becomes a stream") {
  Source source;
  source.PublishChain(1, 3);
  const std::string live = source.info().endpoint.substr(source.info().endpoint.rfind(':') + 1);
  const std::string replay = source.info().replay_endpoint->substr(source.info().replay_endpoint->rfind(':') + 1);
  ChildProcess tap(KVWIRE_BINARY, {"tap", "--endpoint", fmt::format("dns://localhost:{},{}", live, replay), "--quiet",
                                   "--metrics", "127.0.0.1:0"});
  const std::string address = MetricsAddress(&tap);
  ScrapeUntil(address, fmt::format("kvwire_stream_next_sequence{{stream=\"tcp://127.0.0.1:{}\"}} 3\n", live));
  tap.Signal(SIGTERM);
  tap.Wait();
}

TEST_CASE("B11: tap says which rank of an instance never came, and does not pass") {
  const TempDir dir;
  const Instance instance(dir, 4, {0, 1, 3});
  const std::string entry = fmt::format("{},{},dp-size=4", instance.endpoint(), instance.replay_endpoint());
  const std::string incomplete = instance.endpoint() + ": incomplete, rank 2 missing (3 of 4 are there)\n";
  for (const char* const check : {"--check", "--quiet"}) {
    CAPTURE(check);
    ChildProcess tap(KVWIRE_BINARY, {"tap", "--endpoint", entry, check, "--wait", "20", "--until-idle", "0.5"});
    CHECK(tap.Wait() == 2);
    CAPTURE(tap.output());
    CHECK(Has(tap.output(), instance.endpoint() + "#3  connecting to " + instance.endpoint() + "_dp3, replay from "));
    CHECK(Has(tap.output(), incomplete + "streams 4, clean 3, violated 0, incomplete 0, silent 1\n"));
  }
}

TEST_CASE("B11: the figures of an instance name the rank that is missing now, and each stream's rank") {
  const TempDir dir;
  const Instance instance(dir, 4, {0, 1, 3});
  ChildProcess tap(KVWIRE_BINARY, {"tap", "--endpoint", instance.endpoint(), "--replay-endpoint",
                                   instance.replay_endpoint(), "--dp-size", "4", "--quiet", "--metrics", "0"});
  const std::string address = MetricsAddress(&tap);
  const std::string missing = fmt::format("kvwire_stream_rank_missing{{engine=\"{}\",dp_rank=", instance.endpoint());
  for (const int rank : {0, 1, 3}) {
    ScrapeUntil(address,
                fmt::format("kvwire_stream_state{{stream=\"{}#{}\",dp_rank=\"{}\",state=\"synchronised\"}} 1\n",
                            instance.endpoint(), rank, rank));
    ScrapeUntil(address, fmt::format("{}\"{}\"}} 0\n", missing, rank));
  }
  CHECK(Has(Scrape(address), missing + "\"2\"} 1\n"));
  tap.Signal(SIGTERM);
  CHECK(tap.Wait() == 2);
}

TEST_CASE("B11: top shows the rank of each stream and the instance as incomplete, and is not content") {
  const TempDir dir;
  const Instance instance(dir, 4, {0, 1, 3});
  const std::vector<std::string> words{"top",
                                       "--once",
                                       "--endpoint",
                                       instance.endpoint() + ",dp-size=4",
                                       "--replay-endpoint",
                                       instance.replay_endpoint(),
                                       "--wait",
                                       "2"};
  ChildProcess top(KVWIRE_BINARY, words);
  CHECK(top.Wait() == 1);
  CAPTURE(top.output());
  CHECK(Has(top.output(), "4 streams, 1 connect, 3 synced\n" + instance.endpoint() +
                              ": incomplete, rank 2 missing (3 of 4 are there)\n"));
  CHECK(Has(top.output(), instance.endpoint() + "    2 connect"));
  CHECK(Has(top.output(), instance.endpoint() + "    3 synced"));
  std::vector<std::string> as_json = words;
  as_json.emplace_back("--json");
  ChildProcess json(KVWIRE_BINARY, as_json);
  CHECK(json.Wait() == 1);
  CHECK(Has(json.output(), "\"dp_rank\":2,\"state\":\"connecting\""));
  CHECK(Has(json.output(), "\"ranks\":[0,1,2,3],\"missing\":[2],\"state\":\"incomplete\""));
}

TEST_CASE("B11: tap says that batches name another rank than their address, of one stream and of many") {
  for (const bool many : {false, true}) {
    const TempDir dir;
    Instance instance(dir, 2, {0, 1});
    // The address of rank 0 is said to be that of rank 5.
    std::vector<std::string> flags{"-c",         R"(exec "$0" "$@" 2>&1)",       KVWIRE_BINARY, "tap", "--quiet",
                                   "--endpoint", instance.endpoint() + ",rank=5"};
    if (many) flags.insert(flags.end(), {"--endpoint", instance.endpoint() + "_dp1,rank=1"});
    ChildProcess tap("/bin/sh", flags);
    const std::string_view text = ": its batches name rank 0, and its address is that of rank 5: ports and ranks are";
    for (std::uint64_t i = 0; i < 1000 && !Has(tap.output(), text); ++i) {
      instance.PublishAll(StoreBatch(i, std::nullopt));
      REQUIRE(tap.ReadSome(10));
    }
    CHECK(Has(tap.output(), text));
    tap.Signal(SIGTERM);
    const int code = tap.Wait();
    if (!many) CHECK(code == 0);  // the other stream may have heard nothing yet
    CHECK(tap.output().find(text) == tap.output().rfind(text));
  }
}

TEST_CASE("B11: a rank that no address names is missing, too; all of them are complete") {
  const TempDir dir;
  const Instance instance(dir, 2, {0, 1});
  const auto exit_code = [&](const std::string& words) {
    ChildProcess tap(KVWIRE_BINARY, {"tap", "--endpoint",
                                     fmt::format("{},{}{}", instance.endpoint(), instance.replay_endpoint(), words),
                                     "--check", "--wait", "20", "--until-idle", "0.5"});
    const int code = tap.Wait();
    return fmt::format("{} {}", code, Has(tap.output(), "missing (") ? "missing" : "complete");
  };
  CHECK(exit_code(",dp-size=2") == "0 complete");
  CHECK(exit_code(",rank=0,dp-size=2") == "2 missing");
  CHECK(exit_code(",rank=0") == "0 complete");
}

}  // namespace
}  // namespace kvwire::test
