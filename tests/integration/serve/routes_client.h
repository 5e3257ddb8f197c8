// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/integration/serve/server_bench.h"

namespace kvwire::test {

inline constexpr const char* kCompletions = "/v1/completions";
inline constexpr const char* kPrompt = "a prompt of 23 letters.";  // five full blocks

// The object of a good answer.
inline nlohmann::json Parsed(const httplib::Result& result) {
  REQUIRE(result);
  CAPTURE(result->body);
  CHECK(result->status == 200);
  CHECK(result->get_header_value("Content-Type") == "application/json");
  const nlohmann::json body = nlohmann::json::parse(result->body, nullptr, false);
  REQUIRE(body.is_object());
  return body;
}

// Whose requests last.
inline engine::InstanceConfig SlowInstance(std::chrono::nanoseconds per_token) {
  engine::InstanceConfig config = SmallInstance();
  config.time_model.decode_per_request = per_token;
  return config;
}

// A streaming client that reads until its first chunk, and then stays until it is destroyed.
class StreamingClient {
 public:
  StreamingClient(const ServerBench& bench, const nlohmann::json& request)
      : client_(bench.Client()), thread_([this, body = request.dump()] {
          httplib::Request call;
          call.method = "POST";
          call.path = kCompletions;
          call.body = body;
          call.content_receiver = [this](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
            body_.append(data, size);
            started_ = true;
            return !leave_;
          };
          const auto result = client_->send(call);
          complete_ = static_cast<bool>(result);
        }) {}
  ~StreamingClient() { Leave(); }
  StreamingClient(const StreamingClient&) = delete;
  StreamingClient& operator=(const StreamingClient&) = delete;

  bool started() const { return started_; }
  bool complete() const { return complete_; }
  void Leave() {
    if (!thread_.joinable()) return;
    leave_ = true;
    client_->stop();
    thread_.join();
  }
  void Join() { thread_.join(); }
  // After Join.
  const std::string& body() const { return body_; }

 private:
  std::unique_ptr<httplib::Client> client_;
  std::string body_;
  std::atomic<bool> started_{false};
  std::atomic<bool> leave_{false};
  std::atomic<bool> complete_{false};
  std::thread thread_;
};

}  // namespace kvwire::test
