// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "engine/serve/http_server.h"
#include "tests/integration/serve/raw_client.h"
#include "tests/support/stream_support.h"
#include "tests/support/watchdog.h"

// What a client may send, and how it is taken: the rules of HTTP/1.1.
namespace kvwire::test {
namespace {

using engine::HttpRequest;
using engine::HttpResponse;
using engine::HttpServer;

constexpr const char* kNext = "GET /echo HTTP/1.1\r\n\r\n";

// Status lines.
int NumResponses(const std::string& text) {
  constexpr std::string_view kVersion = "HTTP/1.1 ";
  int count = 0;
  for (std::size_t at = text.find(kVersion); at != std::string::npos; at = text.find(kVersion, at + 1)) {
    const std::size_t status = at + kVersion.size();
    if (status < text.size() && text[status] >= '0' && text[status] <= '9') ++count;
  }
  return count;
}

// All that the server answers until it closes the connection.
std::string AnswerTo(const HttpServer& server, const std::string& request) {
  RawClient raw(server);
  raw.Send(request);
  CHECK(raw.WaitForEnd());
  return raw.received();
}

TEST_CASE("a body whose length is not certain is refused, and its bytes are never the next request") {
  const auto server = EchoServer();
  struct Case {
    const char* fields;
    const char* status;
    const char* message;
  };
  const Case cases[] = {
      {"Transfer-Encoding: gzip, chunked\r\n", "501", "gzip, chunked"},
      {"Transfer-Encoding: identity\r\nX: y\r\n", "501", "identity"},
      {"Transfer-Encoding: xchunked\r\n", "501", "xchunked"},
      {"Transfer-Encoding: chunked;q=1\r\n", "400", "chunked;q=1"},
      {"Transfer-Encoding: chunked, chunked\r\n", "400", "chunked, chunked"},
      {"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "400", "chunked, chunked"},
      {"Transfer-Encoding: chunked, gzip\r\n", "400", "chunked, gzip"},
      {"Transfer-Encoding: \r\n", "400", "Transfer-Encoding"},
      {"Transfer-Encoding:\x0b"
       "chunked\r\n",
       "400", "0x0b"},
      {"Transfer-Encoding : chunked\r\n", "400", "Transfer-Encoding :"},
      {"Content-Length : 10\r\n", "400", "Content-Length :"},
      {"Transfer-Encoding: chunked\r\nContent-Length: 10\r\n", "400", "Content-Length"},
      {"Content-Length: 10\r\nContent-Length: 11\r\n", "400", "10, 11"},
      {"Content-Length: 10, 10\r\n", "400", "10, 10"},
      {"Content-Length: +10\r\n", "400", "+10"},
      {"Content-Length: \r\n", "400", "Content-Length"},
      {"Host : x\r\n", "400", "Host :"},
      {"A: b\r\n c\r\n", "400", " c"},
      {": x\r\n", "400", ": x"},
      {"A: b\n", "400", "0x0a"},
      {"A: b\rc\r\n", "400", "0x0d"},
  };
  for (const char* method : {"POST", "GET"}) {
    for (const Case& bad : cases) {
      CAPTURE(method);
      CAPTURE(bad.fields);
      const std::string answer =
          AnswerTo(*server, std::string(method) + " /echo HTTP/1.1\r\n" + bad.fields + "\r\n" + kNext);
      CAPTURE(answer);
      CHECK(answer.starts_with("HTTP/1.1 " + std::string(bad.status)));
      CHECK(answer.find("\"code\":" + std::string(bad.status)) != std::string::npos);
      CHECK(answer.find(bad.message) != std::string::npos);
      CHECK(NumResponses(answer) == 1);
    }
  }
}

TEST_CASE("a body in chunks is not for HTTP/1.0") {
  const auto server = EchoServer();
  const std::string answer =
      AnswerTo(*server, "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n");
  CHECK(answer.starts_with("HTTP/1.1 400"));
  CHECK(answer.find("Transfer-Encoding") != std::string::npos);
}

TEST_CASE("chunks that are none are refused") {
  const auto server = EchoServer();
  for (const char* chunks : {"-5\r\nhello\r\n0\r\n\r\n", "0x5\r\nhello\r\n0\r\n\r\n", "5\r\nhelloX\r\n0\r\n\r\n",
                             "\r\n0\r\n\r\n", "5\nhello\r\n0\r\n\r\n", "ffffffffffffffffff\r\nhello\r\n",
                             "5 x\r\nhello\r\n0\r\n\r\n", "0\r\nX : y\r\n\r\n", "0\r\nX\n\r\n\r\n"}) {
    CAPTURE(chunks);
    const std::string answer =
        AnswerTo(*server, std::string("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n") + chunks + kNext);
    CAPTURE(answer);
    CHECK(answer.starts_with("HTTP/1.1 400"));
    CHECK(NumResponses(answer) == 1);
  }
}

TEST_CASE("fields after a body in chunks are passed over, and the next request follows") {
  const auto server = EchoServer();
  RawClient raw(*server);
  raw.Send(
      "POST /echo HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3;a=\"b\"\r\nabc\r\n2 ;c\r\nde\r\n"
      "0\r\nX-Sum: 1\r\nContent-Length: 7\r\n\r\nPOST /echo HTTP/1.1\r\nContent-Length: 4\r\n\r\nnext");
  CHECK(raw.WaitFor("POST /echo next"));
  CHECK(raw.received().find("POST /echo abcde") != std::string::npos);
}

TEST_CASE("fields after a body in chunks without an end are refused") {
  const auto server = EchoServer();
  RawClient raw(*server);
  raw.Send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n");
  const std::string line = "X: " + std::string(1000, 'x') + "\r\n";
  for (int i = 0; i < 70; ++i) raw.Send(line);
  CHECK(raw.WaitFor("HTTP/1.1 400"));
  CHECK(raw.WaitForEnd());
}

TEST_CASE("empty lines before a request are passed over") {
  const auto server = EchoServer();
  RawClient raw(*server);
  raw.Send("\r\n\r\nPOST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\nab\r\n\r\nGET /echo HTTP/1.1\r\n\r\n");
  CHECK(raw.WaitFor("GET /echo "));
  CHECK(raw.received().starts_with("HTTP/1.1 200"));
  CHECK(raw.received().find("POST /echo ab") != std::string::npos);
}

TEST_CASE("a stream to an HTTP/1.0 client is not in chunks, and ends with the connection") {
  const auto server = MustCreate();
  server->Handle("GET", "/stream", [](const HttpRequest&) {
    HttpResponse response;
    int pieces = 0;
    response.source = [pieces]() mutable -> std::optional<std::string> {
      if (++pieces == 4) return std::nullopt;
      return pieces == 2 ? "" : "piece " + std::to_string(pieces) + "\n";
    };
    return response;
  });
  REQUIRE(server->Start().has_value());
  for (const char* fields : {"", "Connection: keep-alive\r\n", "Connection: Keep-Alive\r\n"}) {
    CAPTURE(fields);
    const std::string answer = AnswerTo(*server, std::string("GET /stream HTTP/1.0\r\n") + fields + "\r\n");
    CAPTURE(answer);
    CHECK(answer.starts_with("HTTP/1.1 200"));
    CHECK(answer.ends_with("\r\n\r\npiece 1\npiece 3\n"));
    CHECK(answer.find("Transfer-Encoding") == std::string::npos);
    CHECK(answer.find("Content-Length") == std::string::npos);
    CHECK(answer.find("Connection: close") != std::string::npos);
  }
  const std::string chunked = AnswerTo(*server, "GET /stream HTTP/1.1\r\nConnection: close\r\n\r\n");
  CHECK(chunked.find("Transfer-Encoding: chunked") != std::string::npos);
  CHECK(chunked.ends_with("0\r\n\r\n"));
}

TEST_CASE("a handler gets a field's value as it came; values of a name that differ are joined") {
  const auto server = MustCreate();
  server->Handle("GET", "/fields", [](const HttpRequest& request) {
    HttpResponse response;
    response.body = "[" + request.Header("x-a").value_or("none") + "]";
    return response;
  });
  REQUIRE(server->Start().has_value());
  const std::pair<const char*, const char*> cases[] = {
      {"X-A: a%41b\r\n", "[a%41b]"},
      {"x-a: %30\r\n", "[%30]"},
      {"X-A: a%0d%0aSet-Cookie:x\r\n", "[a%0d%0aSet-Cookie:x]"},
      {"X-A:\t a b \t\r\n", "[a b]"},
      {"X-A:\r\n", "[]"},
      {"X-A: 0\r\nX-A: 7\r\n", "[0, 7]"},
      {"X-A: 0\r\nX-A: 0\r\n", "[0]"},
      {"X-B: 0\r\n", "[none]"},
  };
  for (const auto& [fields, expected] : cases) {
    CAPTURE(fields);
    RawClient raw(*server);
    raw.Send(std::string("GET /fields HTTP/1.1\r\n") + fields + "\r\n");
    CHECK(raw.WaitFor(expected));
  }
  RawClient raw(*server);
  raw.Send("GET /fields HTTP/1.1\r\nX-A: " + std::string(30000, 'x') + "\r\n\r\n");
  CHECK(raw.WaitFor("[" + std::string(30000, 'x') + "]"));
}

TEST_CASE("a client that asks first is told to go on only when its body will be read") {
  const auto server = EchoServer();
  const std::string expect = "Expect: 100-Continue\r\n";
  for (const char* refused : {"POST /echo HTTP/1.1\r\nContent-Length: 40000000\r\n",
                              "PUT /echo HTTP/1.1\r\n"
                              "Content-Length: 5\r\n",
                              "POST /nope HTTP/1.1\r\nContent-Length: 5\r\n",
                              "POST /echo HTTP/1.1\r\nContent-Length: 5\r\nContent-Encoding: zstd\r\n"}) {
    CAPTURE(refused);
    const std::string answer = AnswerTo(*server, refused + expect + "\r\n");
    CHECK(answer.starts_with("HTTP/1.1 4"));
    CHECK(NumResponses(answer) == 1);
  }
  RawClient raw(*server);
  raw.Send("POST /echo HTTP/1.1\r\nContent-Length: 5\r\n" + expect + "\r\n");
  CHECK(raw.WaitFor("HTTP/1.1 100 Continue\r\n\r\n"));
  CHECK(raw.received() == "HTTP/1.1 100 Continue\r\n\r\n");
  raw.Send("hello");
  CHECK(raw.WaitFor("POST /echo hello"));
  // There is nothing to go on with, or no such answer.
  for (const char* plain : {"GET /echo HTTP/1.1\r\nConnection: close\r\n",
                            "POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n",
                            "POST /echo HTTP/1.0\r\nContent-Length: 0\r\n"}) {
    CAPTURE(plain);
    const std::string answer = AnswerTo(*server, plain + expect + "\r\n");
    CHECK(answer.starts_with("HTTP/1.1 200"));
    CHECK(NumResponses(answer) == 1);
  }
}

TEST_CASE("a body that is packed as nobody knows is refused with its Content-Encoding") {
  const auto server = EchoServer();
  for (const char* packing : {"zstd", "gzip, gzip", "compress", "x"}) {
    CAPTURE(packing);
    const std::string answer = AnswerTo(*server, std::string("POST /echo HTTP/1.1\r\nContent-Encoding: ") + packing +
                                                     "\r\nContent-Length: 4\r\n\r\nbody");
    CHECK(answer.starts_with("HTTP/1.1 415"));
    CHECK(answer.find("Content-Encoding is \\\"" + std::string(packing) + "\\\"") != std::string::npos);
    CHECK(answer.find("gzip") != std::string::npos);
  }
  RawClient raw(*server);
  raw.Send("POST /echo HTTP/1.1\r\nContent-Encoding: Identity\r\nContent-Length: 4\r\n\r\nbody");
  CHECK(raw.WaitFor("POST /echo body"));
}

// Sends a byte again and again until the server closes the connection.
void DripUntilClosed(RawClient* raw) {
  const Watchdog watchdog("a drip of bytes", std::chrono::seconds(60));
  while (raw->TrySend("x") && !raw->Ended(std::chrono::milliseconds(5))) {
  }
}

TEST_CASE("a request whose head comes byte by byte for too long is given up") {
  HttpServer::Options options;
  options.head_time = std::chrono::milliseconds(100);
  const auto server = EchoServer(options);
  RawClient raw(*server);
  raw.Send("GET /echo HTTP/1.1\r\nX: ");
  DripUntilClosed(&raw);
  CHECK(raw.received().starts_with("HTTP/1.1 408"));
  CHECK(raw.received().find("100 ms") != std::string::npos);
}

TEST_CASE("clients that send heads byte by byte make room for others") {
  HttpServer::Options options;
  options.max_threads = 2;
  options.head_time = std::chrono::milliseconds(200);
  const auto server = EchoServer(options);
  std::atomic<bool> over{false};
  std::vector<std::thread> drips;
  for (int i = 0; i < 2; ++i) {
    auto raw = std::make_shared<RawClient>(*server);
    raw->Send("GET /echo HTTP/1.1\r\nX: ");
    drips.emplace_back([raw, &over] {
      while (!over && raw->TrySend("x")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    });
  }
  RawClient waits(*server);
  waits.Send("GET /echo HTTP/1.1\r\n\r\n");
  CHECK(waits.WaitFor("GET /echo"));
  over = true;
  for (std::thread& drip : drips) drip.join();
}

}  // namespace
}  // namespace kvwire::test
