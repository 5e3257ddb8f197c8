// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/clock.h"
#include "kv_events/error.h"
#include "kv_events/subscribe/stream_figures.h"
#include "kv_events/transport/host_lookup.h"

namespace kvwire::engine {

// Where the addresses of streams come from.
//
// Threads: one thread at a time. Time is an argument. Look may wait for a file system.
// Errors: Look's name the source, the line if there is one, and what is allowed; the next look is as if it had not
// been.
class StreamSource {
 public:
  virtual ~StreamSource() = default;

  // All addresses, with different names; nothing: they are those of the last look that said some.
  virtual Result<std::optional<std::vector<StreamAddress>>> Look(MonotonicNanos now) = 0;

  // Whether an error of the first look is one of the command line, rather than of the world.
  virtual bool must_begin_well() const noexcept { return true; }
};

// Which data-parallel rank an address is of, or of how many ranks of one instance it stands for.
struct RankWords {
  std::optional<std::int64_t> rank = std::nullopt;     // "rank=R": the address is that of this rank
  std::optional<std::int64_t> dp_size = std::nullopt;  // "dp-size=N": the instance has so many ranks

  // `size`: of an instance that does not say how many it has.
  RankWords WithDpSize(std::int64_t size) const { return {rank, dp_size || size <= 1 ? dp_size : std::optional(size)}; }
};

// What may follow an address, behind commas: "ADDRESS[,rank=R][,dp-size=N]". Errors: name the flag and the word.
struct RankedText {
  std::string address;
  RankWords ranks;
};
Result<RankedText> SplitRankWords(const std::string& text, std::string_view flag);

// One address, or without a rank and with a dp_size above 1 those of all ranks, from that of rank 0. Errors: name the
// place.
Result<std::vector<StreamAddress>> WithRanks(StreamAddress address, const RankWords& ranks, std::string_view place);

// "ENDPOINT" or "ENDPOINT,REPLAY_ENDPOINT"; the stream's name is the endpoint. Errors: name the flag.
Result<StreamAddress> ParseStreamAddress(const std::string& text, std::string_view flag);

// From two texts; `replay` may be empty. Errors: name the fields.
Result<StreamAddress> MakeStreamAddress(const std::string& endpoint, std::string_view field, const std::string& replay,
                                        std::string_view replay_field);

// Always the same addresses.
class ListSource final : public StreamSource {
 public:
  explicit ListSource(std::vector<StreamAddress> addresses) : addresses_(std::move(addresses)) {}
  Result<std::optional<std::vector<StreamAddress>>> Look(MonotonicNanos now) override;

 private:
  std::optional<std::vector<StreamAddress>> addresses_;
};

// A line per stream: "ENDPOINT [REPLAY_ENDPOINT [TOPIC [NAME]]] [rank=R] [dp-size=N]", "-" for what is left out; "#"
// begins a comment. dp_size: of lines that say none. Errors: name the place, "streams.txt, line 3", and the column.
Result<std::vector<StreamAddress>> ParseStreamList(std::string_view text, const std::string& file,
                                                   std::int64_t dp_size = 1);

// A file of such lines, read again when it has changed.
// Bounds: 1 MiB.
class FileSource final : public StreamSource {
 public:
  explicit FileSource(std::string path, std::int64_t dp_size = 1) : path_(std::move(path)), dp_size_(dp_size) {}
  Result<std::optional<std::vector<StreamAddress>>> Look(MonotonicNanos now) override;

 private:
  // What tells one content from another.
  struct Stamp {
    std::int64_t seconds = 0;
    std::int64_t nanos = 0;
    std::int64_t size = 0;
    std::uint64_t file = 0;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };

  const std::string path_;
  const std::int64_t dp_size_;
  std::optional<Stamp> stamp_;
};

// Every address of a host's name, looked up again and again.
class DnsSource final : public StreamSource {
 public:
  struct Name {
    std::string host;
    std::uint16_t port = 0;
    std::optional<std::uint16_t> replay_port;
    RankWords ranks = {};  // of each address
  };
  // As HostLookup::Poll.
  using Lookup = std::function<std::optional<Result<HostAddresses>>()>;

  DnsSource(Name name, MonotonicNanos interval, Lookup lookup);
  Result<std::optional<std::vector<StreamAddress>>> Look(MonotonicNanos now) override;
  bool must_begin_well() const noexcept override { return false; }

 private:
  const Name name_;
  const MonotonicNanos interval_;
  const Lookup lookup_;
  std::optional<MonotonicNanos> next_look_;
};

// "dns://NAME:PORT" or "dns://NAME:PORT,REPLAY_PORT", with rank words; dp_size: where they say none. Errors: name the
// flag.
Result<DnsSource::Name> ParseDnsName(const std::string& text, std::string_view flag, std::int64_t dp_size = 1);
bool IsDnsName(std::string_view text) noexcept;

}  // namespace kvwire::engine
