// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "kv_events/clock.h"
#include "kv_events/transport/frame_link.h"

namespace kvwire {

// Makes a SUB that watches its peers and connects; null when that fails now.
using LiveLinkFactory = std::function<std::unique_ptr<FrameLink>()>;

// The live link of a stream: one for ever, or a new one for each connection. A new one's messages are surely of the
// publisher that is connected now, and it also comes where a socket would stay mute: after a frame above the size
// limit, and behind a connection that is dead without having ended. What a link connects to by itself after its first
// connection ended is never read.
//
// Threads: one thread at a time. Time is an argument.
// Bounds: at most one link. The next one is made at once when the one before brought a message, else after kFirstPause,
// twice as long each time, up to kLongestPause; one that had no connection for `patience` is given up.
class LiveLink {
 public:
  static constexpr MonotonicNanos kFirstPause = 100'000'000;
  static constexpr MonotonicNanos kLongestPause = 5'000'000'000;

  // REQUIRES: the argument is not null.
  explicit LiveLink(std::unique_ptr<FrameLink> link) : link_(std::move(link)) {}
  // patience 0: without an end; else for factories that may connect to another address the next time.
  explicit LiveLink(LiveLinkFactory factory, MonotonicNanos patience = 0)
      : factory_(std::move(factory)), patience_(patience) {}
  LiveLink(LiveLink&&) = default;

  // Makes what is due to be made.
  void DoWork(MonotonicNanos now);

  std::optional<InFrames> TryReceive();

  // Of all links so far; what is not read does not count.
  PeerCounts peers() noexcept;

  // Ends the present link, if another one can be made; what it still holds is lost.
  void Renew(MonotonicNanos now);
  bool renewable() const noexcept { return factory_ != nullptr; }

  // To wait on; null between two.
  FrameLink* link() const noexcept { return link_.get(); }

 private:
  void End(MonotonicNanos now) noexcept;

  LiveLinkFactory factory_;
  MonotonicNanos patience_ = 0;
  std::unique_ptr<FrameLink> link_;
  PeerCounts ended_;       // of the links before, all their connections ended
  bool over_ = false;      // the connection ended, and nothing more is read from it
  bool received_ = false;  // since the link was made
  MonotonicNanos made_at_ = 0;
  MonotonicNanos next_at_ = 0;
  MonotonicNanos pause_ = kFirstPause;
};

}  // namespace kvwire
