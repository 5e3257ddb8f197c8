// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/stream_source.h"

#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "engine/cli/stream_roster.h"
#include "tests/support/temp_dir.h"

namespace kvwire::engine {
namespace {

using test::TempDir;

constexpr MonotonicNanos kSecond = 1'000'000'000;

std::string ErrorOf(const std::string& list) {
  const auto parsed = ParseStreamList(list, "streams.txt");
  return parsed ? "none" : parsed.error().message;
}

std::vector<std::string> NamesIn(const StreamSet& set) {
  std::vector<std::string> names;
  for (const StreamFigures& figures : set.Snapshot()) names.push_back(figures.address.name);
  return names;
}

using Names = std::vector<std::string>;

TEST_CASE("a line names the endpoint, and what else is there") {
  const auto parsed = ParseStreamList(
      "# engines\n"
      "\n"
      "tcp://10.0.0.1:5557\n"
      "tcp://10.0.0.2:5557 tcp://10.0.0.2:5558   # with replay\n"
      "ipc:///run/kv.sock\t-\tkv@pod-3\tpod-3\r\n",
      "streams.txt");
  REQUIRE(parsed.has_value());
  REQUIRE(parsed->size() == 3);
  CHECK((*parsed)[0].name == "tcp://10.0.0.1:5557");
  CHECK_FALSE((*parsed)[0].replay_endpoint.has_value());
  CHECK((*parsed)[1].replay_endpoint->ToString() == "tcp://10.0.0.2:5558");
  CHECK((*parsed)[2].endpoint.ToString() == "ipc:///run/kv.sock");
  CHECK((*parsed)[2].topic == "kv@pod-3");
  CHECK((*parsed)[2].name == "pod-3");
  CHECK_FALSE((*parsed)[2].replay_endpoint.has_value());
}

TEST_CASE("an error of a list names the line, the column, the value and what is allowed") {
  CHECK(ErrorOf("tcp://a:1\nhttp://b:2\n").starts_with("streams.txt, line 2: endpoint: \"http://b:2\": "));
  CHECK(ErrorOf("tcp://*:1\n").starts_with("streams.txt, line 1: endpoint: \"tcp://*:1\""));
  CHECK(ErrorOf("tcp://a:1 tcp://b\n") ==
        "streams.txt, line 1: replay_endpoint: \"tcp://b\": the port is missing; allowed: tcp://HOST:PORT, ipc://PATH "
        "or inproc://NAME");
  CHECK(ErrorOf("tcp://a:1 tcp://a:1\n") ==
        "streams.txt, line 1: replay_endpoint: \"tcp://a:1\": is the address of the events, too; allowed: another one");
  CHECK(ErrorOf("tcp://a:1 - - x\n\ntcp://b:1 - - x\n") ==
        "streams.txt, line 3: name \"x\": is the name of line 1, too; allowed: different names");
  CHECK(ErrorOf("tcp://a:1 - - x y\n") ==
        "streams.txt, line 1: 5 columns; allowed: ENDPOINT [REPLAY_ENDPOINT [TOPIC [NAME]]] [rank=R] [dp-size=N]");
  CHECK(ErrorOf("inproc://a\n").starts_with("streams.txt, line 1: endpoint: \"inproc://a\": nobody outside"));
  CHECK(ErrorOf("- tcp://a:1\n").starts_with("streams.txt, line 1: endpoint: \"\": "));
}

TEST_CASE("a line of an instance stands for its ranks, by the producer's rule, each named by instance and rank") {
  const auto parsed = ParseStreamList(
      "tcp://10.0.0.1:5557 tcp://10.0.0.1:5757 kv@ engine-a dp-size=3\n"
      "ipc:///run/kv dp-size=2\n"
      "tcp://10.0.0.2:5557 - - engine-b rank=0\n"
      "tcp://10.0.0.3:5557 - - engine-b rank=1 dp-size=2\n",
      "streams.txt");
  REQUIRE_MESSAGE(parsed.has_value(), parsed.error().message);
  Names texts;
  for (const StreamAddress& address : *parsed) {
    texts.push_back(address.name + " " + address.endpoint.ToString() + " " +
                    (address.replay_endpoint ? address.replay_endpoint->ToString() : "-") + " " + address.topic + " " +
                    address.instance + " " + std::to_string(*address.rank) + "/" + std::to_string(address.dp_size));
  }
  CHECK(texts == Names{"engine-a#0 tcp://10.0.0.1:5557 tcp://10.0.0.1:5757 kv@ engine-a 0/3",
                       "engine-a#1 tcp://10.0.0.1:5558 tcp://10.0.0.1:5758 kv@ engine-a 1/3",
                       "engine-a#2 tcp://10.0.0.1:5559 tcp://10.0.0.1:5759 kv@ engine-a 2/3",
                       "ipc:///run/kv#0 ipc:///run/kv -  ipc:///run/kv 0/2",
                       "ipc:///run/kv#1 ipc:///run/kv_dp1 -  ipc:///run/kv 1/2",
                       "engine-b#0 tcp://10.0.0.2:5557 -  engine-b 0/0",
                       "engine-b#1 tcp://10.0.0.3:5557 -  engine-b 1/2"});
}

TEST_CASE("--dp-size is of every entry that does not say how many ranks it has") {
  const auto parsed = ParseStreamList("tcp://a:1\ntcp://b:1 dp-size=1\ntcp://c:1 rank=1\n", "streams.txt", 2);
  REQUIRE(parsed.has_value());
  Names names;
  for (const StreamAddress& address : *parsed) names.push_back(address.name);
  CHECK(names == Names{"tcp://a:1#0", "tcp://a:1#1", "tcp://b:1", "tcp://c:1#1"});
  const auto name = ParseDnsName("dns://engines:5557,5757", "--endpoint", 2);
  REQUIRE(name.has_value());
  DnsSource source(*name, kSecond, [] { return std::optional<Result<HostAddresses>>(HostAddresses{"10.0.0.1"}); });
  const auto looked = source.Look(0);
  REQUIRE((looked.has_value() && looked->has_value()));
  REQUIRE((*looked)->size() == 2);
  CHECK((**looked)[1].name == "tcp://10.0.0.1:5557#1");
  CHECK((**looked)[1].endpoint.ToString() == "tcp://10.0.0.1:5558");
  CHECK((**looked)[1].replay_endpoint->ToString() == "tcp://10.0.0.1:5758");
}

TEST_CASE("an error of a rank names the word, and what is allowed") {
  CHECK(ErrorOf("tcp://a:1 rank=x\n") ==
        "streams.txt, line 1: \"rank=x\": is no number; allowed: rank=0 to 1023, once");
  CHECK(ErrorOf("tcp://a:1 dp-size=0\n") ==
        "streams.txt, line 1: \"dp-size=0\": is out of range; allowed: dp-size=1 to 1024, once");
  CHECK(ErrorOf("tcp://a:1 rank=1 rank=2\n") ==
        "streams.txt, line 1: \"rank=1\": is said twice; allowed: rank=0 to 1023, once");
  CHECK(ErrorOf("tcp://a:1 rank=2 dp-size=2\n") ==
        "streams.txt, line 1: \"rank=2\": there are 2 ranks; allowed: 0 to 1");
  CHECK(ErrorOf("tcp://a:65535 dp-size=2\n").starts_with("streams.txt, line 1: endpoint: \"tcp://a:65535\": with 2 "));
  CHECK(ErrorOf("tcp://a:1 tcp://a:2 dp-size=2\n").find("are 1 ports apart") != std::string::npos);
  CHECK(ParseDnsName("dns://a:65535,dp-size=2", "--endpoint").error().message.find("the last port is 65536") !=
        std::string::npos);
  CHECK(SplitRankWords("ipc:///run/a,b,rank=3", "--endpoint")->address == "ipc:///run/a,b");
  CHECK(SplitRankWords("ipc:///run/a,rank=3,dp-size=4", "--endpoint")->ranks.rank == 3);
}

TEST_CASE("an endpoint may bring its replay endpoint, and a comma of a path is part of it") {
  const auto both = ParseStreamAddress("tcp://a:1,tcp://a:2", "--endpoint");
  REQUIRE(both.has_value());
  CHECK(both->name == "tcp://a:1");
  CHECK(both->replay_endpoint->ToString() == "tcp://a:2");
  const auto path = ParseStreamAddress("ipc:///run/a,b", "--endpoint");
  REQUIRE(path.has_value());
  CHECK(path->endpoint.path == "/run/a,b");
  CHECK_FALSE(path->replay_endpoint.has_value());
  CHECK(ParseStreamAddress("tcp://a:1,tcp://b", "--endpoint").error().message.starts_with("--endpoint: \"tcp://b\": "));
}

TEST_CASE("dns://NAME:PORT and its refusals") {
  const auto name = ParseDnsName("dns://engines.svc:5557,5558", "--endpoint");
  REQUIRE(name.has_value());
  CHECK(name->host == "engines.svc");
  CHECK(name->port == 5557);
  CHECK(name->replay_port == 5558);
  CHECK(ParseDnsName("dns://engines", "--endpoint").error().message ==
        "--endpoint: \"dns://engines\": the port is missing; allowed: dns://NAME:PORT or dns://NAME:PORT,REPLAY_PORT");
  for (const char* const text : {"dns://:1", "dns://a:0", "dns://a:x", "dns://a:1,2,3", "dns://a/b:1", "dns://a:1,1"}) {
    CAPTURE(text);
    CHECK_FALSE(ParseDnsName(text, "--endpoint").has_value());
  }
}

TEST_CASE("a name is looked up at every interval; all its addresses are streams, and a failure keeps them") {
  Result<std::vector<std::string>> answer = std::vector<std::string>{"127.0.0.1", "::1"};
  int asked = 0;
  bool silent = true;
  const auto lookup = [&]() -> std::optional<Result<HostAddresses>> {
    if (silent) return std::nullopt;
    ++asked;
    return answer;
  };
  StreamSet set{StreamSet::Options()};
  std::vector<std::unique_ptr<StreamSource>> sources;
  sources.push_back(std::make_unique<DnsSource>(DnsSource::Name{"engines", 9, 8}, 30 * kSecond, lookup));
  std::vector<std::string> said;
  StreamRoster::Options options;
  options.set = &set;
  options.log = [&said](LogLevel, std::string_view line) { said.emplace_back(line); };
  StreamRoster roster(std::move(sources), options);

  // Nobody waits for a name server.
  REQUIRE(roster.Look(0).has_value());
  CHECK(set.size() == 0);
  silent = false;
  REQUIRE(roster.Look(0).has_value());
  CHECK(NamesIn(set) == Names{"tcp://127.0.0.1:9", "tcp://[::1]:9"});
  CHECK(set.Snapshot()[1].address.replay_endpoint->ToString() == "tcp://[::1]:8");
  REQUIRE(roster.Look(29 * kSecond).has_value());
  CHECK(asked == 1);

  answer = MakeError(ErrorCode::kUnavailable, "engines: cannot be resolved: no");
  for (int i = 1; i < 10; ++i) CHECK(roster.Look(i * 30 * kSecond).has_value());
  CHECK(asked == 10);
  CHECK(said == Names{"engines: cannot be resolved: no"});
  CHECK(set.size() == 2);

  answer = std::vector<std::string>{"127.0.0.2", "127.0.0.1"};
  REQUIRE(roster.Look(300 * kSecond).has_value());
  CHECK(NamesIn(set) == Names{"tcp://127.0.0.1:9", "tcp://127.0.0.2:9"});
}

TEST_CASE("a file that changes changes the streams; one that is wrong or gone keeps them, and says so once") {
  const TempDir dir;
  const std::string file = dir / "streams.txt";
  const auto write = [&file](const std::string& text) {
    std::ofstream(file + ".new") << text;
    REQUIRE(std::rename((file + ".new").c_str(), file.c_str()) == 0);
  };
  StreamSet set{StreamSet::Options()};
  std::vector<std::unique_ptr<StreamSource>> sources;
  sources.push_back(std::make_unique<FileSource>(file));
  std::vector<std::string> said;
  std::vector<std::string> left;
  StreamRoster::Options options;
  options.set = &set;
  options.topic = "kv";
  options.log = [&said](LogLevel, std::string_view line) { said.emplace_back(line); };
  options.on_ended = [&left](const StreamSet::Ended& ended) { left.push_back(ended.figures.address.name); };
  StreamRoster roster(std::move(sources), options);

  CHECK(roster.Look(0).error().message == file + ": No such file or directory");
  write("tcp://127.0.0.1:9 - - a\ntcp://127.0.0.1:8 - other b\n");
  REQUIRE(roster.Look(0).has_value());
  CHECK(NamesIn(set) == Names{"a", "b"});
  CHECK(set.Snapshot()[0].address.topic == "kv");
  CHECK(set.Snapshot()[1].address.topic == "other");

  write("tcp://127.0.0.1:9 - - a\nnonsense\n");
  CHECK(roster.Look(0).error().message.starts_with(file + ", line 2: endpoint: \"nonsense\""));
  // Not read again, and not said again, while it is the same file.
  CHECK(roster.Look(0).has_value());
  CHECK(NamesIn(set) == Names{"a", "b"});
  CHECK(said.size() == 1);

  // A stream whose address is another one begins anew under its name.
  write("tcp://127.0.0.1:7 - - a\n");
  REQUIRE(roster.Look(0).has_value());
  CHECK(NamesIn(set) == Names{"a"});
  CHECK(set.Snapshot()[0].address.endpoint.ToString() == "tcp://127.0.0.1:7");
  CHECK(left == Names{"a", "b"});

  // What is no file would block whoever opens it.
  REQUIRE(mkfifo((file + ".new").c_str(), 0600) == 0);
  REQUIRE(std::rename((file + ".new").c_str(), file.c_str()) == 0);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(roster.Look(0).has_value());
  CHECK(said.size() == 2);
  CHECK(said.back() == file + ": is no regular file; allowed: one that can be read again");
  CHECK(NamesIn(set) == Names{"a"});

  REQUIRE(std::remove(file.c_str()) == 0);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(roster.Look(0).has_value());
  CHECK(said.size() == 3);
  CHECK(NamesIn(set) == Names{"a"});
}

}  // namespace
}  // namespace kvwire::engine
