// SPDX-License-Identifier: Apache-2.0
#include "kv_events/transport/zap_server.h"

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>
#include <zmq.hpp>

#include "kv_events/transport/curve_keys.h"

namespace kvwire {

namespace {

constexpr const char* kAddress = "inproc://zeromq.zap.01";  // the protocol's
constexpr std::string_view kVersion = "1.0";
constexpr std::string_view kMechanism = "CURVE";
constexpr std::size_t kKeyBytes = 32;
// A question's frames.
enum Frame : std::size_t { kOfVersion, kOfRequest, kOfDomain, kOfAddress, kOfIdentity, kOfMechanism, kOfKey, kFrames };

std::vector<std::string> ReceiveAll(void* socket) {
  std::vector<std::string> frames;
  for (bool more = true; more;) {
    zmq::message_t frame;
    if (zmq_msg_recv(frame.handle(), socket, ZMQ_DONTWAIT) < 0) {
      if (errno == EINTR) continue;
      break;
    }
    if (frames.size() < kFrames) frames.push_back(frame.to_string());
    more = frame.more();
  }
  return frames;
}

}  // namespace

Result<std::unique_ptr<ZapServer>> ZapServer::Start(void* context) {
  void* const handler = zmq_socket(context, ZMQ_REP);
  const int linger = 0;
  const int bound = handler == nullptr ? -1 : zmq_bind(handler, kAddress);
  const int reason = zmq_errno();
  const int stop = bound == 0 ? eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC) : -1;
  if (stop < 0) {
    if (handler != nullptr) zmq_close(handler);
    const bool taken = bound != 0 && reason == EADDRINUSE;
    return MakeError(
        taken ? ErrorCode::kAddressInUse : ErrorCode::kUnavailable,
        fmt::format("cannot answer at {} who may connect: {}", kAddress, zmq_strerror(bound == 0 ? errno : reason)));
  }
  zmq_setsockopt(handler, ZMQ_LINGER, &linger, sizeof(linger));
  std::unique_ptr<ZapServer> server(new ZapServer(handler, stop));
  server->thread_ = std::thread([running = server.get()] { running->Run(); });
  return server;
}

ZapServer::~ZapServer() {
  [[maybe_unused]] const int done = eventfd_write(stop_, 1);
  if (thread_.joinable()) thread_.join();
  zmq_close(handler_);
  close(stop_);
}

std::string ZapServer::Add(std::shared_ptr<CurveClients> clients) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string domain = fmt::format("kvwire.{}", next_++);
  domains_.emplace(domain, std::move(clients));
  return domain;
}

void ZapServer::Remove(const std::string& domain) {
  const std::lock_guard<std::mutex> lock(mutex_);
  domains_.erase(domain);
}

void ZapServer::Run() {
  std::array<zmq_pollitem_t, 2> items{{{handler_, 0, ZMQ_POLLIN, 0}, {nullptr, stop_, ZMQ_POLLIN, 0}}};
  while (true) {
    if (zmq_poll(items.data(), static_cast<int>(items.size()), -1) < 0 && zmq_errno() != EINTR) return;
    if (items[1].revents != 0) return;
    if (items[0].revents != 0) Answer();
  }
}

void ZapServer::Answer() {
  const std::vector<std::string> question = ReceiveAll(handler_);
  if (question.empty()) return;
  const bool admitted = Admits(question);
  const std::string_view request = question.size() > kOfRequest ? std::string_view(question[kOfRequest]) : "";
  const std::array<std::string_view, 6> answer{
      kVersion, request, admitted ? "200" : "400", admitted ? "OK" : "this key is not admitted", "", ""};
  for (std::size_t i = 0; i < answer.size(); ++i) {
    const int more = i + 1 < answer.size() ? ZMQ_SNDMORE : 0;
    zmq_send(handler_, answer[i].data(), answer[i].size(), ZMQ_DONTWAIT | more);
  }
}

bool ZapServer::Admits(const std::vector<std::string>& question) {
  if (question.size() < kFrames || question[kOfVersion] != kVersion || question[kOfMechanism] != kMechanism)
    return false;
  if (question[kOfKey].size() != kKeyBytes) return false;
  std::array<char, kCurveKeyLength + 1> key{};
  zmq_z85_encode(key.data(), reinterpret_cast<const std::uint8_t*>(question[kOfKey].data()), kKeyBytes);
  std::shared_ptr<CurveClients> clients;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = domains_.find(question[kOfDomain]);
    if (found == domains_.end()) return false;
    clients = found->second;
  }
  return clients->Admit(key.data(), question[kOfAddress]);
}

}  // namespace kvwire
