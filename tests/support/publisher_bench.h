// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "kv_events/publish/zmq_publisher.h"
#include "kv_events/wire/encoder.h"
#include "tests/support/key_files.h"
#include "tests/support/stream_support.h"

namespace kvwire::test {

// Loopback, ports chosen by the system, with replay.
inline KVEventsConfig LoopbackConfig() {
  KVEventsConfig config;
  config.enable_kv_cache_events = true;
  config.endpoint = "tcp://127.0.0.1:0";
  config.replay_endpoint = "tcp://127.0.0.1:0";
  config.buffer_steps = 100;
  config.topic = "test";
  config.kvwire.mode = SocketMode::kBind;
  return config;
}

// A running publisher in a context of its own, and clients for it, which show what `curve` says. With KVWIRE_TEST_CURVE
// in the environment it is closed, and its clients have the key.
struct PublisherBench {
  explicit PublisherBench(KVEventsConfig config = LoopbackConfig(), PublisherOptions options = {},
                          PublisherAgent::EncodeFunction encode = {}) {
    options.context = context;
    if (std::getenv("KVWIRE_TEST_CURVE") != nullptr) Close(&config);
    Result<std::unique_ptr<ZmqPublisher>> made = ZmqPublisher::Create(config, options, std::move(encode));
    if (!made) throw std::runtime_error(made.error().message);
    publisher = std::move(*made);
  }

  std::unique_ptr<ZmqLink> Subscribe(const std::string& prefix = "", int receive_hwm = 1000) const {
    LinkOptions options;
    options.subscription = prefix;
    options.receive_hwm = receive_hwm;
    options.curve_client = curve;
    return ConnectTo(context, LinkKind::kSub, publisher->source()->endpoint, options);
  }
  std::unique_ptr<ZmqLink> Dealer(const std::string& identity = "", int receive_hwm = 1000) const {
    LinkOptions options;
    options.identity = identity;
    options.receive_hwm = receive_hwm;
    options.curve_client = curve;
    return ConnectTo(context, LinkKind::kDealer, publisher->source()->replay_endpoint.value(), options);
  }

  bool Settled() const {
    return Eventually([&] { return publisher->stats().queued == 0; });
  }

  const std::shared_ptr<ZmqContext> context = ZmqContext::Create();
  std::unique_ptr<ZmqPublisher> publisher;
  std::shared_ptr<const CurveClient> curve;

 private:
  void Close(KVEventsConfig* config) {
    const CurveKeys own = NewKeys();
    const CurveKeys theirs = NewKeys();
    files_.emplace();
    config->kvwire.curve.secret_key_file = files_->Write("publisher.key_secret", SecretCurveCertificate(own));
    config->kvwire.curve.allowed_keys_file = files_->Write("allowed", theirs.public_key + "\n");
    curve = std::make_shared<const CurveClient>(CurveClient{theirs, own.public_key});
  }

  std::optional<KeyFiles> files_;
};

// An encoder that waits at the gate.
// Threads: any.
class Gate {
 public:
  PublisherAgent::EncodeFunction encoder() {
    return [this, real = BatchEncoder({})](const KVEventBatch& batch, std::vector<std::uint8_t>* out) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return open_; });
      real.Encode(batch, out);
    };
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

}  // namespace kvwire::test
