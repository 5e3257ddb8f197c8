// SPDX-License-Identifier: Apache-2.0
#include "tests/support/memory_link.h"

#include <algorithm>

namespace kvwire::test {

namespace {

InFrames CopyFrames(std::span<const OutFrame> frames) {
  InFrames copy;
  for (const OutFrame& frame : frames) copy.emplace_back(frame.bytes.begin(), frame.bytes.end());
  return copy;
}

SendResult Put(MemoryPipe* pipe, std::span<const OutFrame> frames) {
  if (pipe->reader_gone) return SendResult::kUnroutable;
  if (pipe->messages.size() >= pipe->capacity) return SendResult::kWouldBlock;
  pipe->messages.push_back(CopyFrames(frames));
  return SendResult::kSent;
}

std::optional<InFrames> Take(MemoryPipe* pipe) {
  if (pipe->messages.empty()) return std::nullopt;
  InFrames frames = std::move(pipe->messages.front());
  pipe->messages.pop_front();
  return frames;
}

std::shared_ptr<MemoryPipe> NewPipe(std::size_t capacity) {
  auto pipe = std::make_shared<MemoryPipe>();
  pipe->capacity = capacity;
  return pipe;
}

}  // namespace

std::pair<std::unique_ptr<MemoryLink>, std::unique_ptr<MemoryLink>> MemoryLink::Pair(std::size_t capacity) {
  const std::shared_ptr<MemoryPipe> there = NewPipe(capacity);
  const std::shared_ptr<MemoryPipe> back = NewPipe(capacity);
  return {std::make_unique<MemoryLink>(there, back), std::make_unique<MemoryLink>(back, there)};
}

MemoryLink::MemoryLink(std::shared_ptr<MemoryPipe> out, std::shared_ptr<MemoryPipe> in)
    : out_(std::move(out)), in_(std::move(in)) {}

MemoryLink::~MemoryLink() { in_->reader_gone = true; }

SendResult MemoryLink::TrySend(std::span<const OutFrame> frames) noexcept { return Put(out_.get(), frames); }

std::optional<InFrames> MemoryLink::TryReceive() { return Take(in_.get()); }

std::unique_ptr<FrameLink> MemoryPub::Subscribe(std::string prefix, std::size_t capacity) {
  const std::shared_ptr<MemoryPipe> pipe = NewPipe(capacity);
  std::vector<std::uint8_t> subscription(1, 1);
  subscription.insert(subscription.end(), prefix.begin(), prefix.end());
  told_.push_back({std::move(subscription)});
  subscribers_.emplace_back(std::move(prefix), pipe);
  return std::make_unique<MemoryLink>(NewPipe(0), pipe);
}

SendResult MemoryPub::TrySend(std::span<const OutFrame> frames) noexcept {
  for (const auto& [prefix, pipe] : subscribers_) {
    const std::span<const std::uint8_t> topic = frames[0].bytes;
    const bool fits = prefix.size() <= topic.size() && std::equal(prefix.begin(), prefix.end(), topic.begin());
    if (fits) Put(pipe.get(), frames);
  }
  return SendResult::kSent;
}

std::optional<InFrames> MemoryPub::TryReceive() {
  if (told_.empty()) return std::nullopt;
  InFrames frames = std::move(told_.front());
  told_.pop_front();
  return frames;
}

std::unique_ptr<FrameLink> MemoryRouter::Connect(const std::string& identity, std::size_t capacity) {
  const Peer peer{NewPipe(capacity), NewPipe(capacity)};
  peers_[identity] = peer;
  return std::make_unique<MemoryLink>(peer.from_peer, peer.to_peer);
}

SendResult MemoryRouter::TrySend(std::span<const OutFrame> frames) noexcept {
  const std::string identity(frames[0].bytes.begin(), frames[0].bytes.end());
  const auto peer = peers_.find(identity);
  if (peer == peers_.end()) return SendResult::kUnroutable;
  return Put(peer->second.to_peer.get(), frames.subspan(1));
}

std::optional<InFrames> MemoryRouter::TryReceive() {
  for (auto& [identity, peer] : peers_) {
    std::optional<InFrames> frames = Take(peer.from_peer.get());
    if (!frames) continue;
    frames->insert(frames->begin(), std::vector<std::uint8_t>(identity.begin(), identity.end()));
    return frames;
  }
  return std::nullopt;
}

SendResult FaultyLink::TrySend(std::span<const OutFrame> frames) noexcept {
  if (failure != SendResult::kSent) return failure;
  if (room == 0) return SendResult::kWouldBlock;
  if (lose && lose(frames)) {
    --room;
    return SendResult::kSent;
  }
  const SendResult result = inner_->TrySend(frames);
  if (result == SendResult::kSent) --room;
  return result;
}

}  // namespace kvwire::test
