// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/serve/http_server.h"

namespace kvwire::test {

inline engine::HttpResponse Echo(const engine::HttpRequest& request) {
  engine::HttpResponse response;
  response.body = request.method + " " + request.path + " " + request.body;
  return response;
}

inline std::unique_ptr<engine::HttpServer> MustCreate(engine::HttpServer::Options options = {}) {
  auto server = engine::HttpServer::Create(std::move(options));
  REQUIRE_MESSAGE(server.has_value(), server.error().message);
  return *std::move(server);
}

inline std::unique_ptr<engine::HttpServer> EchoServer(engine::HttpServer::Options options = {}) {
  auto server = MustCreate(std::move(options));
  server->Handle("GET", "/echo", Echo);
  server->Handle("POST", "/echo", Echo);
  REQUIRE(server->Start().has_value());
  return server;
}

// A connection of raw bytes.
class RawClient {
 public:
  explicit RawClient(const engine::HttpServer& server) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  ~RawClient() { ::close(socket_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void Send(const std::string& text) {
    CHECK(::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
  }

  // False when the server does not take it any more.
  bool TrySend(const std::string& text) {
    return ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  // Takes what comes within the time; whether the server has closed the connection.
  bool Ended(std::chrono::milliseconds time) {
    pollfd entry{socket_, POLLIN, 0};
    if (::poll(&entry, 1, static_cast<int>(time.count())) > 0) Receive();
    return ended_;
  }

  // Reads until the text is there; false if the connection ended, or nothing came for ten seconds.
  bool WaitFor(const std::string& text) {
    while (received_.find(text) == std::string::npos) {
      if (!Receive()) return false;
    }
    return true;
  }

  // Until the server closes; false if it does not within ten seconds of silence.
  bool WaitForEnd() {
    while (Receive()) {
    }
    return ended_;
  }

  const std::string& received() const { return received_; }

 private:
  bool Receive() {
    pollfd entry{socket_, POLLIN, 0};
    if (::poll(&entry, 1, 10000) <= 0) return false;
    char buffer[4096];
    const ssize_t size = ::recv(socket_, buffer, sizeof(buffer), 0);
    ended_ = size <= 0;
    if (size > 0) received_.append(buffer, static_cast<std::size_t>(size));
    return !ended_;
  }

  const int socket_;
  std::string received_;
  bool ended_ = false;
};

}  // namespace kvwire::test
