// SPDX-License-Identifier: Apache-2.0
#include "engine/http/remote_tokenizer.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <httplib.h>
#include <netdb.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/http/caller_scope.h"
#include "engine/http/text_stream.h"
#include "tests/support/watchdog.h"

namespace kvwire::engine {
namespace {

using Json = nlohmann::json;
using Tokens = std::vector<TokenId>;

// A tokenizer server on a port of its own; `reply` answers every request.
class Server {
 public:
  using Reply = std::function<void(const httplib::Request&, httplib::Response&)>;

  explicit Server(Reply reply) {
    server_.Post(".*", std::move(reply));
    port_ = server_.bind_to_any_port("127.0.0.1");
    REQUIRE(port_ > 0);
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~Server() {
    server_.stop();
    thread_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

// Serves one connection with raw bytes.
class RawServer {
 public:
  explicit RawServer(std::function<void(int socket)> serve)
      : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    REQUIRE(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener_, 1) == 0);
    REQUIRE(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, serve = std::move(serve)] {
      const int client = ::accept(listener_, nullptr, nullptr);
      serve(client);
      ::close(client);
    });
  }
  ~RawServer() {
    thread_.join();
    ::close(listener_);
  }
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  const int listener_;
  int port_ = 0;
  std::thread thread_;
};

std::unique_ptr<RemoteTokenizer> Connect(const std::string& url, const std::string& model = "m") {
  auto tokenizer = RemoteTokenizer::Create({.url = url, .model = model});
  REQUIRE(tokenizer.has_value());
  return *std::move(tokenizer);
}

// Byte tokens in vLLM's protocol.
void ReplyAsBytes(const httplib::Request& request, httplib::Response& response) {
  const ByteTokenizer bytes;
  const Json body = Json::parse(request.body);
  const Json reply = request.path.ends_with("/tokenize")
                         ? Json{{"tokens", bytes.Encode(body.at("prompt").get<std::string>()).value()}}
                         : Json{{"prompt", bytes.Decode(body.at("tokens").get<Tokens>()).value()}};
  response.set_content(reply.dump(), "application/json");
}

// The error of an Encode that is answered with the text.
std::string EncodeError(int status, const std::string& text) {
  const test::Watchdog watchdog("EncodeError", std::chrono::seconds(20));
  const Server server([&](const httplib::Request&, httplib::Response& response) {
    response.status = status;
    response.set_content(text, "application/json");
  });
  const auto tokens = Connect(server.url())->Encode("x");
  REQUIRE_FALSE(tokens.has_value());
  CHECK(tokens.error().code == ErrorCode::kUnavailable);
  const std::string prefix = "tokenizer " + server.url() + "/tokenize: ";
  REQUIRE(tokens.error().message.starts_with(prefix));
  return tokens.error().message.substr(prefix.size());
}

TEST_CASE("text is tokenized and tokens are detokenized by the server, under its path and with the model") {
  const test::Watchdog watchdog("remote tokenizer", std::chrono::seconds(20));
  std::vector<std::pair<std::string, Json>> requests;
  const Server server([&](const httplib::Request& request, httplib::Response& response) {
    requests.emplace_back(request.path, Json::parse(request.body));
    CHECK(request.get_header_value("Content-Type") == "application/json");
    ReplyAsBytes(request, response);
  });
  const auto tokenizer = Connect(server.url() + "/base//");
  CHECK(tokenizer->name() == server.url() + "/base");
  CHECK(tokenizer->Encode("h\xc3\xa9").value() == Tokens{0x68, 0xc3, 0xa9});
  CHECK(tokenizer->Decode(Tokens{0x68, 0x69}).value() == "hi");
  CHECK(tokenizer->SettledTokens(Tokens{0x68}) == 0);
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].first == "/base/tokenize");
  CHECK(requests[0].second == Json({{"model", "m"}, {"prompt", "h\xc3\xa9"}, {"add_special_tokens", true}}));
  CHECK(requests[1].first == "/base/detokenize");
  CHECK(requests[1].second == Json({{"model", "m"}, {"tokens", {0x68, 0x69}}}));
}

TEST_CASE("without a model none is sent") {
  const test::Watchdog watchdog("remote tokenizer", std::chrono::seconds(20));
  Json seen;
  const Server server([&](const httplib::Request& request, httplib::Response& response) {
    seen = Json::parse(request.body);
    ReplyAsBytes(request, response);
  });
  CHECK(Connect(server.url(), "")->Encode("a").value() == Tokens{0x61});
  CHECK_FALSE(seen.contains("model"));
}

TEST_CASE("a request asks no proxy, follows no redirect and wants a plain reply at once") {
  const test::Watchdog watchdog("remote tokenizer", std::chrono::seconds(20));
  ::setenv("http_proxy", "http://127.0.0.1:9", 1);
  httplib::Headers seen;
  int requests = 0;
  const Server server([&](const httplib::Request& request, httplib::Response& response) {
    ++requests;
    seen = request.headers;
    response.status = 302;
    response.set_header("Location", "/elsewhere");
  });
  const auto tokens = Connect(server.url())->Encode(std::string(2 << 20, 'x'));
  ::unsetenv("http_proxy");
  REQUIRE_FALSE(tokens.has_value());
  CHECK(tokens.error().message == "tokenizer " + server.url() + "/tokenize: status 302: ");
  CHECK(requests == 1);
  CHECK(seen.find("User-Agent")->second == "kvwire");
  CHECK(seen.find("Accept-Encoding")->second == "identity");
  CHECK(seen.count("Expect") == 0);
}

TEST_CASE("a stream over a remote tokenizer sends whole characters and stops at a stop string") {
  const test::Watchdog watchdog("remote tokenizer", std::chrono::seconds(20));
  const Server server(ReplyAsBytes);
  const auto tokenizer = Connect(server.url());
  TextStream stream(tokenizer.get(), {"END"});
  std::vector<std::string> pieces;
  for (const char c : std::string_view("\xc3\xa9xENDy")) {
    const TokenId token = static_cast<unsigned char>(c);
    pieces.push_back(stream.Append(std::span(&token, 1)).value());
  }
  CHECK(pieces == std::vector<std::string>{"", "\xc3\xa9", "x", "", "", "", ""});
  CHECK(stream.stopped());
}

TEST_CASE("what a server answers instead is told with address and status") {
  CHECK(EncodeError(503, "go\naway") == "status 503: go\\x0aaway");
  CHECK(EncodeError(404, "") == "status 404: ");
  CHECK(EncodeError(302, "") == "status 302: ");
  CHECK(EncodeError(200, "hello") == "the reply is hello: the body is no JSON at byte 1, after \"h\"");
  CHECK(EncodeError(200, "[]") == "the reply is []: the body is \"[]\", expected a JSON object");
  const std::string expected = ", expected {\"tokens\": [token ids from 0 to 2147483647]}";
  for (const char* reply : {"{}", R"({"tokens":5})", R"({"tokens":[-1]})", R"({"tokens":[1.5]})",
                            R"({"tokens":[2147483648]})", R"({"tokens":["a"]})"}) {
    CHECK(EncodeError(200, reply) == std::string("the reply is ") + reply + expected);
  }
}

TEST_CASE("a wrong reply to detokenize is told with the address") {
  const test::Watchdog watchdog("remote tokenizer", std::chrono::seconds(20));
  const Server server([](const httplib::Request&, httplib::Response& response) {
    response.set_content(R"({"prompt": 5})", "application/json");
  });
  CHECK(Connect(server.url())->Decode(Tokens{1}).error().message ==
        "tokenizer " + server.url() + R"(/detokenize: the reply is {"prompt":5}, expected {"prompt": text})");
}

TEST_CASE("nobody at the address is told with it") {
  const test::Watchdog watchdog("remote tokenizer", std::chrono::seconds(20));
  std::string url;
  {
    const Server server(ReplyAsBytes);
    url = server.url();
  }
  const auto tokens = Connect(url)->Encode("x");
  REQUIRE_FALSE(tokens.has_value());
  CHECK(tokens.error().code == ErrorCode::kUnavailable);
  CHECK(tokens.error().message == "tokenizer " + url + "/tokenize: cannot connect: Connection refused");
}

TEST_CASE("a server that never answers is given up") {
  const test::Watchdog watchdog("remote tokenizer", std::chrono::seconds(20));
  std::atomic<bool> over = false;
  const Server server([&](const httplib::Request&, httplib::Response&) {
    while (!over) std::this_thread::yield();
  });
  const auto tokenizer = RemoteTokenizer::Create({.url = server.url(), .reply_timeout = std::chrono::milliseconds(50)});
  const auto tokens = tokenizer.value()->Encode("x");
  over = true;
  REQUIRE_FALSE(tokens.has_value());
  CHECK(tokens.error().message == "tokenizer " + server.url() + "/tokenize: no reply: the time is over");
}

TEST_CASE("a reply that trickles in forever is given up") {
  const test::Watchdog watchdog("remote tokenizer", std::chrono::seconds(20));
  const Server server([](const httplib::Request&, httplib::Response& response) {
    response.set_chunked_content_provider("application/json",
                                          [](std::size_t, httplib::DataSink& sink) { return sink.write(" ", 1); });
  });
  const auto tokenizer = RemoteTokenizer::Create({.url = server.url(),
                                                  .connect_timeout = std::chrono::milliseconds(20),
                                                  .reply_timeout = std::chrono::milliseconds(80)});
  const auto tokens = tokenizer.value()->Encode("x");
  REQUIRE_FALSE(tokens.has_value());
  CHECK(tokens.error().message ==
        "tokenizer " + server.url() + "/tokenize: status 200, and the reply's body cannot be read: the time is over");
}

TEST_CASE("many threads may ask at once") {
  const test::Watchdog watchdog("remote tokenizer", std::chrono::seconds(60));
  const Server server(ReplyAsBytes);
  const auto tokenizer = Connect(server.url());
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 25; ++i) {
        const std::string text = std::to_string(thread) + ":" + std::to_string(i);
        const auto tokens = tokenizer->Encode(text);
        if (tokens.has_value() && tokenizer->Decode(*tokens).value_or("") == text) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 100);
}

TEST_CASE("a server that hangs up in the middle of a request is told with the address") {
  const test::Watchdog watchdog("remote tokenizer", std::chrono::seconds(20));
  const RawServer server([](int client) {
    char some = 0;
    CHECK(::recv(client, &some, 1, 0) == 1);
  });
  const auto tokens = Connect(server.url())->Encode(std::string(8 << 20, 'x'));
  REQUIRE_FALSE(tokens.has_value());
  CHECK(tokens.error().message.starts_with("tokenizer " + server.url() + "/tokenize: cannot send the request: "));
}

// While one lives, looking up kHost takes until its end.
class SlowLookUps {
 public:
  static constexpr const char* kHost = "slow.invalid";

  SlowLookUps() { slow_ = true; }
  ~SlowLookUps() {
    slow_ = false;
    while (waiting_ > 0) std::this_thread::yield();
  }
  SlowLookUps(const SlowLookUps&) = delete;
  SlowLookUps& operator=(const SlowLookUps&) = delete;

  static int running() { return waiting_; }
  static void Wait() {
    ++waiting_;
    while (slow_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --waiting_;
  }

 private:
  static inline std::atomic<bool> slow_ = false;
  static inline std::atomic<int> waiting_ = 0;
};

// Writes the text again and again until the client closes.
void SendForever(int client, const std::string& text, std::chrono::milliseconds pause) {
  while (::send(client, text.data(), text.size(), MSG_NOSIGNAL) > 0) std::this_thread::sleep_for(pause);
}

// Waits until the client closes, and reads what it sends.
void Drain(int client) {
  char some[4096];
  while (::recv(client, some, sizeof(some), 0) > 0) {
  }
}

TEST_CASE("all of an exchange has one time, however slowly the server answers") {
  const test::Watchdog watchdog("remote tokenizer", std::chrono::seconds(20));
  const std::string head = "HTTP/1.1 200 OK\r\n";
  const std::pair<std::string, std::string> answers[] = {
      {"HTTP/1.1 200 ", "x"},                          // its first line
      {head, "X: y\r\n"},                              // its fields, line by line
      {head + "X: ", "y"},                             // byte by byte
      {"", "HTTP/1.1 100 Continue\r\n\r\n"},           // never the final one
      {head + "Content-Length: 100000\r\n\r\n", " "},  // its body
      {head + "Transfer-Encoding: chunked\r\n\r\n", "1\r\n \r\n"},
      {head + "Transfer-Encoding: chunked\r\n\r\n1;", "x"},
  };
  for (const auto& [begin, rest] : answers) {
    CAPTURE(begin);
    CAPTURE(rest);
    const RawServer server([&](int client) {
      CHECK(::send(client, begin.data(), begin.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(begin.size()));
      SendForever(client, rest, std::chrono::milliseconds(5));
    });
    const auto tokenizer =
        RemoteTokenizer::Create({.url = server.url(), .reply_timeout = std::chrono::milliseconds(100)});
    const auto tokens = tokenizer.value()->Encode("x");
    REQUIRE_FALSE(tokens.has_value());
    CHECK(tokens.error().code == ErrorCode::kUnavailable);
    CHECK(tokens.error().message.ends_with("the time is over"));
  }
}

TEST_CASE("an exchange ends soon after its caller is gone, whatever the server does") {
  const test::Watchdog watchdog("remote tokenizer", std::chrono::seconds(20));
  const std::function<void(int)> servers[] = {
      Drain,                                                                                          // silent
      [](int client) { SendForever(client, "HTTP/1.1 100\r\n\r\n", std::chrono::milliseconds(1)); },  // never silent
      [](int client) { SendForever(client, "HTTP/1.1 1", std::chrono::milliseconds(10)); },           // slow
  };
  for (const auto& serve : servers) {
    std::atomic<bool> gone = false;
    const RawServer server([&](int client) {
      gone = true;
      serve(client);
    });
    const CallerScope scope([&] { return gone.load(); });
    const auto tokenizer = RemoteTokenizer::Create({.url = server.url(), .reply_timeout = std::chrono::hours(1)});
    const auto tokens = tokenizer.value()->Encode("x");
    REQUIRE_FALSE(tokens.has_value());
    CHECK(tokens.error().message.ends_with("nobody waits for it any more"));
  }
}

TEST_CASE("looking up a name is part of the time, and ends soon after the caller is gone") {
  const test::Watchdog watchdog("remote tokenizer", std::chrono::seconds(20));
  const SlowLookUps slow;
  const auto encode = [](std::chrono::milliseconds connect, std::chrono::milliseconds reply) {
    const std::string url = std::string("http://") + SlowLookUps::kHost;
    const auto tokenizer = RemoteTokenizer::Create({.url = url, .connect_timeout = connect, .reply_timeout = reply});
    const auto tokens = tokenizer.value()->Encode("x");
    REQUIRE_FALSE(tokens.has_value());
    CHECK(tokens.error().code == ErrorCode::kUnavailable);
    return tokens.error().message;
  };
  constexpr std::chrono::milliseconds kShort(50);
  constexpr std::chrono::hours kLong(1);
  CHECK(encode(kShort, kLong).ends_with("/tokenize: cannot connect: the time is over"));
  CHECK(encode(kLong, kShort).ends_with("/tokenize: cannot connect: the time is over"));
  const CallerScope scope([before = SlowLookUps::running()] { return SlowLookUps::running() > before; });
  CHECK(encode(kLong, kLong).ends_with("/tokenize: cannot connect: nobody waits for it any more"));
}

TEST_CASE("a reply is read up to a bound: its head, its depth, its values and its bytes") {
  const test::Watchdog watchdog("remote tokenizer", std::chrono::seconds(60));
  const std::string head = "HTTP/1.1 200 OK\r\n";
  struct Case {
    std::string begin;
    std::string rest;  // again and again
    std::string message;
  };
  std::string many = R"({"tokens":[1)";
  for (int i = 0; i < (1 << 22); ++i) many += ",1";
  const Case cases[] = {
      {head, "X: " + std::string(1000, 'y') + "\r\n", "larger than 65536 bytes"},
      {head + "X: ", std::string(1000, 'y'), "larger than 65536 bytes"},
      {head + "\r\n", std::string(100000, ' '), "larger than 33554432 bytes"},
      {head + "Content-Length: 99999999999999999999\r\n\r\n", std::string(100000, ' '), "larger than 33554432 bytes"},
      {head + "Transfer-Encoding: chunked\r\n\r\n", "2;" + std::string(4000, 'x') + "\r\n  \r\n",
       "larger than 67108864 bytes"},
      {head + "Content-Length: 20000000\r\n\r\n" + std::string(20000000, '['), "", "deeper than 32"},
      {head + "Content-Length: 20000011\r\n\r\n{\"tokens\":" + std::string(20000000, '[') + "]", "", "deeper than 32"},
      {head + "\r\n" + many + "]}", "", "more than 4194304 values"},
  };
  for (const Case& large : cases) {
    CAPTURE(large.message);
    const RawServer server([&](int client) {
      std::thread reading([client] { Drain(client); });
      if (::send(client, large.begin.data(), large.begin.size(), MSG_NOSIGNAL) > 0 && !large.rest.empty()) {
        SendForever(client, large.rest, std::chrono::milliseconds(0));
      }
      ::shutdown(client, SHUT_RDWR);
      reading.join();
    });
    const auto tokens = Connect(server.url())->Encode("x");
    REQUIRE_FALSE(tokens.has_value());
    CHECK(tokens.error().code == ErrorCode::kUnavailable);
    CAPTURE(tokens.error().message);
    CHECK(tokens.error().message.find(large.message) != std::string::npos);
    CHECK(tokens.error().message.size() < 1000);
  }
}

TEST_CASE("a reply that is no HTTP, or whose length is not certain, is told with what is wrong") {
  const test::Watchdog watchdog("remote tokenizer", std::chrono::seconds(20));
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  const std::string body = R"({"tokens":[1]})";
  const std::pair<std::string, std::string> cases[] = {
      {"", "the server closed the connection"},
      {"SSH-2.0-x\r\n\r\n", "HTTP/0.9"},
      {"HTTP/2 200\r\n\r\n", "HTTP/2 200"},
      {"HTTP/1.1 2000 OK\r\n\r\n", "response code"},
      {std::string("\x16\x03\x01", 3), "HTTP/0.9"},
      {ok + "no colon\r\n\r\n", "without colon"},
      {ok + "Content-Length: -5\r\n\r\n" + body, "Content-Length"},
      {ok + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + body, "chunked"},
      {ok + "Transfer-Encoding: gzip\r\n\r\n" + body, "gzip"},
      {ok + "Content-Encoding: gzip\r\n\r\n" + body, "gzip"},
      {ok + "Content-Length: 100\r\n\r\n" + body, "ends too early"},
      {ok + "Transfer-Encoding: chunked\r\n\r\n" + body, "in chunked-encoding"},
      {ok + "Content-Length: 15\r\n\r\n{\"tokens\":[1]}\xff", "UTF-8"},
      {"HTTP/1.1 204 No Content\r\n\r\n", "status 204"},
  };
  for (const auto& [answer, message] : cases) {
    CAPTURE(answer);
    const RawServer server([&answer = answer](int client) {
      if (!answer.empty()) CHECK(::send(client, answer.data(), answer.size(), MSG_NOSIGNAL) > 0);
      ::shutdown(client, SHUT_WR);
      Drain(client);
    });
    const auto tokens = Connect(server.url())->Encode("x");
    REQUIRE_FALSE(tokens.has_value());
    CHECK(tokens.error().code == ErrorCode::kUnavailable);
    CAPTURE(tokens.error().message);
    CHECK(tokens.error().message.find(message) != std::string::npos);
  }
  // Replies before the final one, no length, chunks.
  for (const std::string& answer :
       {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok + "\r\n" + body,
        "HTTP/1.0 200\r\n\r\n" + body,
        ok + "transfer-encoding: Chunked\r\n\r\n1\r\n{\r\nd;x=y\r\n\"tokens\":[1]}\r\n0\r\nX: y\r\n\r\n"}) {
    CAPTURE(answer);
    const RawServer server([&](int client) {
      CHECK(::send(client, answer.data(), answer.size(), MSG_NOSIGNAL) > 0);
      ::shutdown(client, SHUT_WR);
      Drain(client);
    });
    CHECK(Connect(server.url())->Encode("x").value() == Tokens{1});
  }
}

TEST_CASE("text that is no UTF-8 is refused before anybody is asked") {
  const auto tokens = Connect("http://127.0.0.1:9")->Encode("ab\xff");
  REQUIRE_FALSE(tokens.has_value());
  CHECK(tokens.error().code == ErrorCode::kInvalidArgument);
  CHECK(tokens.error().message == "the text \"ab\\xff\" is no UTF-8 at byte 2");
}

TEST_CASE("addresses are read, and refused with what is allowed") {
  for (const char* url : {"http://h", "http://h:8000", "http://h:8000/v1/", "http://[::1]:80/x", "http://[fe80::a]"}) {
    CHECK(RemoteTokenizer::Create({.url = url}).has_value());
  }
  for (const char* url : {"", "h:8000", "https://h", "http://", "http://:80", "http://h:", "http://h:0",
                          "http://h:65536", "http://h:8o", "http://[::1", "http://[::1]x", "http://u@h", "http://h/?q",
                          "http://h/#f", "http://h/a b", "http://h\r\nX: y"}) {
    const auto tokenizer = RemoteTokenizer::Create({.url = url});
    INFO(url);
    REQUIRE_FALSE(tokenizer.has_value());
    CHECK(tokenizer.error().code == ErrorCode::kInvalidArgument);
    CHECK(tokenizer.error().message.ends_with("expected http://host[:port][/path]"));
  }
  CHECK(RemoteTokenizer::Create({.url = "https://h/"}).error().message ==
        "tokenizer: url is \"https://h\", expected http://host[:port][/path]");
  CHECK(RemoteTokenizer::Create({.url = "http://h", .reply_timeout = std::chrono::milliseconds(0)}).error().message ==
        "tokenizer: reply_timeout is 0 ms, expected 1 to 3600000");
  CHECK(RemoteTokenizer::Create({.url = "http://h", .model = "\xff"}).error().message ==
        "tokenizer: model is \"\\xff\", expected UTF-8");
}

}  // namespace
}  // namespace kvwire::engine

// In the place of the system's.
extern "C" __attribute__((visibility("default"))) int getaddrinfo(const char* host, const char* service,
                                                                  const addrinfo* hints, addrinfo** found) {
  using LookUp = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto system = reinterpret_cast<LookUp>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host == nullptr || std::string_view(host) != kvwire::engine::SlowLookUps::kHost) {
    return system(host, service, hints, found);
  }
  kvwire::engine::SlowLookUps::Wait();
  return EAI_NONAME;
}
