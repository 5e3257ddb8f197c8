// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/http_server.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <httplib.h>

#include "tests/integration/serve/raw_client.h"
#include "tests/support/stream_support.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {
namespace {

using engine::HttpRequest;
using engine::HttpResponse;
using engine::HttpServer;

TEST_CASE("B3: a second server on the same port fails at start and names the address") {
  const auto first = MustCreate();
  HttpServer::Options options;
  options.port = first->port();
  const auto second = HttpServer::Create(options);
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error().code == ErrorCode::kAddressInUse);
  CHECK(second.error().message.find(first->address()) != std::string::npos);
}

TEST_CASE("a port is free again when its server is gone, also after connections") {
  std::uint16_t port = 0;
  {
    const auto server = EchoServer();
    port = server->port();
    CHECK(httplib::Client("127.0.0.1", port).Get("/echo"));
  }
  HttpServer::Options options;
  options.port = port;
  CHECK(HttpServer::Create(options).has_value());
}

TEST_CASE("a host that is none is refused with its name") {
  for (const char* host : {"no such host", "192.0.2.1", "300.1.1.1"}) {
    CAPTURE(host);
    HttpServer::Options options;
    options.host = host;
    const auto server = HttpServer::Create(options);
    REQUIRE_FALSE(server.has_value());
    CHECK(server.error().code == ErrorCode::kInvalidArgument);
    CHECK(server.error().message.find(host) != std::string::npos);
  }
}

TEST_CASE("requests reach their handlers, one after the other on a connection") {
  const auto server = EchoServer();
  httplib::Client client("127.0.0.1", server->port());
  client.set_keep_alive(true);
  for (int i = 0; i < 50; ++i) {
    const auto result = client.Post("/echo?a=b", "text " + std::to_string(i), "text/plain");
    REQUIRE(result);
    CHECK(result->status == 200);
    CHECK(result->body == "POST /echo text " + std::to_string(i));
  }
  CHECK(client.Get("/echo")->body == "GET /echo ");
  CHECK(client.Head("/echo")->body.empty());
  RawClient raw(*server);
  raw.Send(
      "GET /echo HTTP/1.1\r\n\r\nPOST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET /echo HTTP/1.1\r\n"
      "Connection: close\r\n\r\n");
  CHECK(raw.WaitForEnd());
  CHECK(raw.WaitFor("GET /echo"));
  CHECK(raw.received().find("POST /echo abc") != std::string::npos);
}

TEST_CASE("a POST without a length has no body and is answered at once") {
  const auto server = EchoServer();
  RawClient raw(*server);
  raw.Send("POST /echo HTTP/1.1\r\n\r\n");
  CHECK(raw.WaitFor("POST /echo "));
}

TEST_CASE("a body may come in chunks and packed") {
  const auto server = EchoServer();
  RawClient raw(*server);
  raw.Send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  CHECK(raw.WaitFor("POST /echo abcde"));
  httplib::Client client("127.0.0.1", server->port());
  client.set_compress(true);
  const auto packed = client.Post("/echo", std::string(100000, 'x'), "text/plain");
  REQUIRE(packed);
  CHECK(packed->body == "POST /echo " + std::string(100000, 'x'));
}

TEST_CASE("a body is taken as it is, whatever its type, and answered as it is, whatever the client would take") {
  const auto server = EchoServer();
  for (const char* header : {"Content-Type: application/x-www-form-urlencoded", "Content-Type: multipart/form-data",
                             "Content-Type: multipart/form-data; boundary=x", "Range: bytes=0-1",
                             "Accept-Encoding: gzip, br", "Expect: 100-continue"}) {
    CAPTURE(header);
    RawClient raw(*server);
    raw.Send("POST /echo HTTP/1.1\r\nContent-Length: 7\r\n" + std::string(header) + "\r\n\r\n--x\r\na=");
    CHECK(raw.WaitFor("HTTP/1.1 200 OK"));
    CHECK(raw.WaitFor("POST /echo --x\r\na="));
    CHECK(raw.received().find("Content-Encoding") == std::string::npos);
  }
}

TEST_CASE("what is wrong with a request is told as an OpenAI error object with its status") {
  const auto server = EchoServer();
  struct Case {
    const char* request;
    const char* status;
    const char* message;
  };
  const Case cases[] = {
      {"GET /nope HTTP/1.1\r\n\r\n", "404", "/nope"},
      {"DELETE /echo HTTP/1.1\r\n\r\n", "405", "DELETE"},
      {"POST /nope HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", "404", "/nope"},
      {"POST /echo HTTP/1.1\r\nContent-Length: 33554433\r\n\r\n", "413", "33554432"},
      {"POST /echo HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", "413", "33554432"},
      {"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400", "-1"},
      {"POST /echo HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "400", "Content-Length"},
      {"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400", "well-formed"},
      {"POST /echo HTTP/1.1 \r\n\r\n", "400", "well-formed"},
      {"hello\r\n\r\n", "400", "well-formed"},
      {"BREW /echo HTTP/1.1\r\n\r\n", "400", "well-formed"},
  };
  for (const Case& bad : cases) {
    CAPTURE(bad.request);
    RawClient raw(*server);
    raw.Send(bad.request);
    REQUIRE(raw.WaitFor("\"code\":" + std::string(bad.status)));
    CAPTURE(raw.received());
    CHECK(raw.received().find("HTTP/1.1 " + std::string(bad.status)) != std::string::npos);
    CHECK(raw.received().find(bad.message) != std::string::npos);
  }
}

TEST_CASE("a body above the limit is refused also when its length is not told") {
  const auto server = EchoServer();
  httplib::Client client("127.0.0.1", server->port());
  client.set_compress(true);  // 40 MB become 40 KB
  const auto packed = client.Post("/echo", std::string(40 << 20, 'x'), "text/plain");
  REQUIRE(packed);
  CHECK(packed->status == 413);
}

TEST_CASE("a head without an end is refused") {
  const auto server = EchoServer();
  RawClient raw(*server);
  raw.Send("GET /echo HTTP/1.1\r\n");
  for (int i = 0; i < 70; ++i) {
    const std::string line = "X-" + std::to_string(i) + ": " + std::string(1000, 'x') + "\r\n";
    raw.Send(line);
  }
  CHECK(raw.WaitFor("\"code\":431"));
  CHECK(raw.WaitForEnd());
}

TEST_CASE("clients that send slowly or never do not hold up others") {
  HttpServer::Options options;
  options.max_threads = 32;
  const auto server = EchoServer(options);
  std::vector<std::unique_ptr<RawClient>> slow;
  for (int i = 0; i < 30; ++i) {
    slow.push_back(std::make_unique<RawClient>(*server));
    if (i % 2 == 0) slow.back()->Send("POST /echo HTTP/1.1\r\nContent-Le");
  }
  for (int i = 0; i < 20; ++i) CHECK(httplib::Client("127.0.0.1", server->port()).Get("/echo"));
  slow[0]->Send("ngth: 2\r\n\r\nok");
  CHECK(slow[0]->WaitFor("POST /echo ok"));
}

TEST_CASE("connections without a request make room for those that have one") {
  HttpServer::Options options;
  options.max_threads = 4;
  options.keep_alive = std::chrono::hours(1);
  const auto server = EchoServer(options);
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 4; ++i) {
    idle.push_back(std::make_unique<RawClient>(*server));
    if (i % 2 == 0) continue;
    idle.back()->Send("GET /echo HTTP/1.1\r\n\r\n");
    CHECK(idle.back()->WaitFor("GET /echo"));
  }
  for (int i = 0; i < 4; ++i) CHECK(httplib::Client("127.0.0.1", server->port()).Get("/echo"));
}

TEST_CASE("a connection that has sent a part of a request keeps its place while others wait") {
  HttpServer::Options options;
  options.max_threads = 2;
  const auto server = EchoServer(options);
  RawClient begun(*server);
  begun.Send("POST /echo HTTP/1.1\r\nContent-Le");
  RawClient one(*server);
  // That it is closed shows that the rule was followed: one more waits, and the grace of a new connection is over.
  RawClient waits(*server);
  waits.Send("GET /echo HTTP/1.1\r\n\r\n");
  CHECK(waits.WaitFor("GET /echo"));
  CHECK(one.WaitForEnd());
  begun.Send("ngth: 2\r\n\r\nok");
  CHECK(begun.WaitFor("POST /echo ok"));
}

TEST_CASE("a client that is silent within a request is given up") {
  HttpServer::Options options;
  options.patience = std::chrono::milliseconds(50);
  const auto server = EchoServer(options);
  RawClient raw(*server);
  raw.Send("POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  CHECK(raw.WaitFor("HTTP/1.1 408"));
  CHECK(raw.WaitForEnd());
}

TEST_CASE("a handler sees that its client has gone, and a stream's source is destroyed") {
  std::atomic<int> waiting{0};
  std::atomic<int> sources{0};
  const auto server = MustCreate();
  server->Handle("GET", "/wait", [&](const HttpRequest& request) {
    ++waiting;
    while (!request.abandoned()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --waiting;
    return HttpResponse{};
  });
  server->Handle("GET", "/stream", [&](const HttpRequest&) {
    ++sources;
    const std::shared_ptr<int> alive(new int, [&](const int* number) {
      delete number;
      --sources;
    });
    HttpResponse response;
    bool first = true;
    response.source = [alive, first]() mutable -> std::optional<std::string> {
      if (std::exchange(first, false)) return "news";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return "";
    };
    return response;
  });
  REQUIRE(server->Start().has_value());
  {
    RawClient waits(*server);
    waits.Send("GET /wait HTTP/1.1\r\n\r\n");
    RawClient streams(*server);
    streams.Send("GET /stream HTTP/1.1\r\n\r\n");
    CHECK(streams.WaitFor("news"));
    CHECK(Eventually([&] { return waiting == 1 && sources == 1; }));
  }
  CHECK(Eventually([&] { return waiting == 0 && sources == 0; }));
  CHECK(Eventually([&] { return server->num_active() == 0; }));
}

TEST_CASE("a stop ends what runs, and a drain lets it finish") {
  std::atomic<bool> go_on{true};
  std::atomic<int> running{0};
  std::atomic<int> pieces{0};
  auto server = MustCreate();
  server->Handle("GET", "/slow", [&](const HttpRequest& request) {
    ++running;
    while (go_on && !request.abandoned()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    HttpResponse response;
    response.body = "done";
    return response;
  });
  server->Handle("GET", "/endless", [&](const HttpRequest&) {
    ++running;
    HttpResponse response;
    response.source = [&]() -> std::optional<std::string> {
      ++pieces;
      return std::string(1 << 20, 'x');
    };
    return response;
  });
  REQUIRE(server->Start().has_value());
  RawClient idle(*server);
  RawClient slow(*server);
  slow.Send("GET /slow HTTP/1.1\r\n\r\n");
  RawClient endless(*server);  // nobody reads it: its writes find no room
  endless.Send("GET /endless HTTP/1.1\r\n\r\n");
  CHECK(Eventually([&] { return running == 2 && pieces > 0; }));
  int seen = -1;
  CHECK(Eventually([&] { return std::exchange(seen, pieces.load()) == pieces; }));
  const Watchdog watchdog("the drain and the stop", std::chrono::seconds(20));
  server->StopAccepting();
  CHECK(idle.WaitForEnd());
  CHECK_FALSE(httplib::Client("127.0.0.1", server->port()).Get("/slow"));
  go_on = false;
  CHECK(slow.WaitFor("done"));
  CHECK(slow.received().find("Connection: close") != std::string::npos);
  server->Stop();
  CHECK(endless.WaitForEnd());
}

TEST_CASE("an exception of a handler is status 500, and the server lives on") {
  const auto server = MustCreate();
  server->Handle("GET", "/bad", [](const HttpRequest&) -> HttpResponse { throw std::runtime_error("it broke"); });
  REQUIRE(server->Start().has_value());
  for (int i = 0; i < 3; ++i) {
    const auto result = httplib::Client("127.0.0.1", server->port()).Get("/bad");
    REQUIRE(result);
    CHECK(result->status == 500);
    CHECK(result->body.find("it broke") != std::string::npos);
  }
}

TEST_CASE("an exception of a body's source ends the connection before the body's end, and the server lives on") {
  const auto server = MustCreate();
  server->Handle("GET", "/bad", [](const HttpRequest&) {
    HttpResponse response;
    bool first = true;
    response.source = [first]() mutable -> std::optional<std::string> {
      if (std::exchange(first, false)) return "news";
      throw std::runtime_error("it broke");
    };
    return response;
  });
  REQUIRE(server->Start().has_value());
  for (int i = 0; i < 3; ++i) {
    RawClient raw(*server);
    raw.Send("GET /bad HTTP/1.1\r\n\r\n");
    CHECK(raw.WaitForEnd());
    CHECK(raw.received().ends_with("news\r\n"));
  }
  CHECK(Eventually([&] { return server->num_active() == 0; }));
}

TEST_CASE("200 clients at once are all answered") {
  constexpr int kClients = 200;  // there are threads for more
  const auto server = EchoServer();
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      httplib::Client client("127.0.0.1", server->port());
      client.set_read_timeout(60);
      const auto result = client.Post("/echo", "x", "text/plain");
      if (result && result->body == "POST /echo x") ++answered;
    });
  }
  for (std::thread& client : clients) client.join();
  CHECK(answered == kClients);
}

}  // namespace
}  // namespace kvwire::test
