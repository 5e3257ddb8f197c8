// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kv_events/transport/frame_link.h"

namespace kvwire::test {

// Links in memory, with the rules of the ZeroMQ sockets they stand for. A message is there for the other end as soon as
// it is sent.
// Threads: everything that is connected belongs to one thread.

// Whole messages in one direction, up to a bound.
struct MemoryPipe {
  std::size_t capacity = 0;
  std::deque<InFrames> messages;
  bool reader_gone = false;
};

// One end of a two-way connection: a DEALER's view.
class MemoryLink final : public FrameLink {
 public:
  static std::pair<std::unique_ptr<MemoryLink>, std::unique_ptr<MemoryLink>> Pair(std::size_t capacity = 1000);

  MemoryLink(std::shared_ptr<MemoryPipe> out, std::shared_ptr<MemoryPipe> in);
  ~MemoryLink() override;

  SendResult TrySend(std::span<const OutFrame> frames) noexcept override;
  std::optional<InFrames> TryReceive() override;
  std::string endpoint() const override { return "memory"; }

 private:
  const std::shared_ptr<MemoryPipe> out_;
  const std::shared_ptr<MemoryPipe> in_;
};

// Sends to every subscriber whose prefix fits; a full subscriber loses the message, the sender is told nothing.
// Receives one message per subscription.
class MemoryPub final : public FrameLink {
 public:
  std::unique_ptr<FrameLink> Subscribe(std::string prefix, std::size_t capacity = 1000);

  SendResult TrySend(std::span<const OutFrame> frames) noexcept override;
  std::optional<InFrames> TryReceive() override;
  std::string endpoint() const override { return "memory-pub"; }

 private:
  std::deque<InFrames> told_;
  std::vector<std::pair<std::string, std::shared_ptr<MemoryPipe>>> subscribers_;
};

// Mandatory: a full peer gives kWouldBlock, an unknown or gone one kUnroutable. A second peer with an identity takes
// over.
class MemoryRouter final : public FrameLink {
 public:
  std::unique_ptr<FrameLink> Connect(const std::string& identity, std::size_t capacity = 1000);

  SendResult TrySend(std::span<const OutFrame> frames) noexcept override;
  std::optional<InFrames> TryReceive() override;
  std::string endpoint() const override { return "memory-router"; }

 private:
  struct Peer {
    std::shared_ptr<MemoryPipe> to_peer;
    std::shared_ptr<MemoryPipe> from_peer;
  };
  std::map<std::string, Peer> peers_;
};

// Another link with faults. Borrows it.
class FaultyLink final : public FrameLink {
 public:
  explicit FaultyLink(FrameLink* inner) : inner_(inner) {}

  std::size_t room = std::numeric_limits<std::size_t>::max();  // messages that TrySend takes before kWouldBlock
  SendResult failure = SendResult::kSent;                      // anything else is what TrySend answers
  std::function<bool(std::span<const OutFrame>)> lose;         // true: the message vanishes on its way

  SendResult TrySend(std::span<const OutFrame> frames) noexcept override;
  std::optional<InFrames> TryReceive() override { return inner_->TryReceive(); }
  std::string endpoint() const override { return inner_->endpoint(); }

 private:
  FrameLink* const inner_;
};

}  // namespace kvwire::test
