// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/cli/stream_options.h"
#include "engine/cli/tap_sink.h"
#include "kv_events/clock.h"
#include "kv_events/subscribe/dialect.h"
#include "kv_events/subscribe/watched_stream.h"
#include "kv_events/wire/frames.h"

namespace kvwire::engine {

// The command line of `kvwire tap`.
struct TapOptions {
  StreamOptions streams;
  bool bind = false;
  double until_idle = 0;  // seconds; 0: for ever
  double wait = 0;
  std::optional<SequenceNumber> first_seq;  // the dialect's
  std::string dialect = std::string(TraitsOf(Dialect::kVllm).name);
  std::string removals = "per_copy";
  std::string against;
  std::optional<std::uint32_t> against_rank;
  std::string metrics;  // address; empty: none
  TapOutput output;

  // How each stream is received.
  WatchedStream::Options Watched() const {
    WatchedStream::Options watched;
    watched.stream.dialect = *DialectByName(dialect);
    watched.stream.first_sequence = first_seq;
    watched.stream.topic = streams.topic;
    watched.heartbeat = LinkHeartbeat(streams);
    watched.curve = streams.curve;
    return watched;
  }
  // What is done with the stream at `address`; of the only one the name does not go before each line.
  TapOutput OutputOf(const StreamAddress& address) const {
    TapOutput own = output;
    own.rank = address.rank;
    own.check = output.check || !against.empty();
    own.removals = removals == "exact" ? Removals::kExact : Removals::kPerCopy;
    return own;
  }
};

// How long publishers are asked at the end whether what came is all.
inline constexpr MonotonicNanos kAskLimit = 30'000'000'000;
inline constexpr MonotonicNanos kAskLimitWhenStopped = 1'000'000'000;

// Verdicts take 0 to 3.
inline constexpr int kTapFailed = 4;

}  // namespace kvwire::engine
