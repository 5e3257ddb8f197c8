// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/stream_source.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/cli/address_option.h"
#include "kv_events/escape_text.h"
#include "kv_events/subscribe/rank_group.h"
#include "kv_events/text_file.h"

namespace kvwire::engine {

namespace {

constexpr std::string_view kDnsScheme = "dns://";
constexpr std::size_t kMaxNameBytes = 200;
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;

using MaybeAddresses = std::optional<std::vector<StreamAddress>>;

// An address that a subscriber can connect to.
Result<Endpoint> ParseConnecting(const std::string& text, std::string_view field) {
  Result<Endpoint> endpoint = ParseAddress(text, field);
  if (!endpoint) return endpoint;
  if (const Status connects = CheckConnects(*endpoint, field); !connects)
    return tl::unexpected<Error>(connects.error());
  return endpoint;
}

// Where a second address begins, or npos: paths may hold commas.
std::size_t CommaBeforeScheme(const std::string& text) {
  for (std::size_t at = text.find(','); at != std::string::npos; at = text.find(',', at + 1)) {
    const std::string_view rest = std::string_view(text).substr(at + 1);
    if (rest.find("://") != std::string_view::npos && rest.find("://") < rest.find('/')) return at;
  }
  return std::string::npos;
}

constexpr std::string_view kRankKey = "rank=";
constexpr std::string_view kDpSizeKey = "dp-size=";

bool IsRankWord(std::string_view word) { return word.starts_with(kRankKey) || word.starts_with(kDpSizeKey); }

// REQUIRES: IsRankWord(word).
Status AddRankWord(std::string_view word, std::string_view place, RankWords* ranks) {
  const bool names_rank = word.starts_with(kRankKey);
  const std::string_view key = names_rank ? kRankKey : kDpSizeKey;
  const std::int64_t least = names_rank ? 0 : 1;
  const std::int64_t most = names_rank ? kMaxDpSize - 1 : kMaxDpSize;
  const std::string_view text = word.substr(key.size());
  std::optional<std::int64_t>& value = names_rank ? ranks->rank : ranks->dp_size;
  const auto refuse = [&](std::string_view reason) {
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("{}: \"{}\": {}; allowed: {}{} to {}, once", place,
                                                              ShortText(word), reason, key, least, most));
  };
  if (value) return refuse("is said twice");
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return refuse("is no number");
  if (number < least || number > most) return refuse("is out of range");
  value = number;
  return {};
}

StreamAddress AddressAt(const DnsSource::Name& name, const std::string& host) {
  StreamAddress address;
  address.endpoint.host = host.find(':') == std::string::npos ? host : fmt::format("[{}]", host);
  address.endpoint.port = name.port;
  address.name = address.endpoint.ToString();
  if (name.replay_port) {
    address.replay_endpoint = address.endpoint;
    address.replay_endpoint->port = name.replay_port;
  }
  return address;
}

std::vector<std::string> Columns(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  std::vector<std::string> columns;
  for (std::size_t at = line.find_first_not_of(kBlanks); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    const std::string_view column = line.substr(at, end - at);
    if (column.starts_with('#')) break;
    columns.emplace_back(column == "-" ? std::string_view() : column);
    at = line.find_first_not_of(kBlanks, end);
  }
  return columns;
}

Result<std::vector<StreamAddress>> ParseLine(std::vector<std::string> columns, const std::string& place,
                                             std::int64_t dp_size) {
  constexpr std::size_t kMost = 4;
  RankWords ranks;
  for (; columns.size() > 1 && IsRankWord(columns.back()); columns.pop_back()) {
    if (const Status added = AddRankWord(columns.back(), place, &ranks); !added) {
      return tl::unexpected<Error>(added.error());
    }
  }
  if (columns.size() > kMost) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: {} columns; allowed: ENDPOINT [REPLAY_ENDPOINT [TOPIC [NAME]]] [rank=R] [dp-size=N]", place,
                    columns.size()));
  }
  columns.resize(kMost);
  Result<StreamAddress> address =
      MakeStreamAddress(columns[0], place + ": endpoint", columns[1], place + ": replay_endpoint");
  if (!address) return tl::unexpected<Error>(address.error());
  address->topic = columns[2];
  if (columns[3].size() > kMaxNameBytes) {
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("{}: name \"{}\": has {} bytes; allowed: up to {}", place,
                                                              ShortText(columns[3]), columns[3].size(), kMaxNameBytes));
  }
  if (!columns[3].empty()) address->name = columns[3];
  return WithRanks(*std::move(address), ranks.WithDpSize(dp_size), place);
}

std::optional<std::uint16_t> ParsePort(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port == 0) return std::nullopt;
  return port;
}

// An open file; -1 is none.
class Descriptor {
 public:
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const noexcept { return fd_; }

 private:
  const int fd_;
};

tl::unexpected<Error> CannotRead(const std::string& path) {
  return MakeError(ErrorCode::kUnavailable, fmt::format("{}: {}", path, std::strerror(errno)));
}

Result<std::string> ReadAll(int fd, const std::string& path) {
  std::string text(kMaxFileBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(fd, text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return CannotRead(path);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > kMaxFileBytes) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{}: has more than {} bytes; allowed: up to that", path, kMaxFileBytes));
  }
  text.resize(size);
  return text;
}

}  // namespace

Result<StreamAddress> MakeStreamAddress(const std::string& endpoint, std::string_view field, const std::string& replay,
                                        std::string_view replay_field) {
  StreamAddress address;
  const Result<Endpoint> live = ParseConnecting(endpoint, field);
  if (!live) return tl::unexpected<Error>(live.error());
  address.endpoint = *live;
  address.name = endpoint;
  if (replay.empty()) return address;
  const Result<Endpoint> asked = ParseConnecting(replay, replay_field);
  if (!asked) return tl::unexpected<Error>(asked.error());
  if (AddressesMeet(*live, *asked, SocketMode::kConnect)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{}: \"{}\": is the address of the events, too; allowed: another one", replay_field,
                                 ShortText(replay)));
  }
  address.replay_endpoint = *asked;
  return address;
}

Result<StreamAddress> ParseStreamAddress(const std::string& text, std::string_view flag) {
  const std::size_t comma = CommaBeforeScheme(text);
  if (comma == std::string::npos) return MakeStreamAddress(text, flag, {}, flag);
  return MakeStreamAddress(text.substr(0, comma), flag, text.substr(comma + 1), flag);
}

Result<RankedText> SplitRankWords(const std::string& text, std::string_view flag) {
  RankedText split{text, {}};
  for (std::size_t comma = split.address.rfind(','); comma != std::string::npos; comma = split.address.rfind(',')) {
    const std::string word = split.address.substr(comma + 1);
    if (!IsRankWord(word)) break;
    if (const Status added = AddRankWord(word, flag, &split.ranks); !added) {
      return tl::unexpected<Error>(added.error());
    }
    split.address.resize(comma);
  }
  return split;
}

Result<std::vector<StreamAddress>> WithRanks(StreamAddress address, const RankWords& ranks, std::string_view place) {
  const std::int64_t dp_size = ranks.dp_size.value_or(0);
  if (!ranks.rank && dp_size <= 1) return std::vector<StreamAddress>{std::move(address)};
  if (!ranks.rank) {
    Result<std::vector<StreamAddress>> all = AddressesOfRanks(address, dp_size);
    if (!all) return MakeError(all.error().code, fmt::format("{}: {}", place, all.error().message));
    return all;
  }
  if (ranks.dp_size && *ranks.rank >= dp_size) {
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("{}: \"rank={}\": there are {} ranks; allowed: 0 to {}",
                                                              place, *ranks.rank, dp_size, dp_size - 1));
  }
  StreamAddress one = AsRank(std::move(address), *ranks.rank);
  one.dp_size = dp_size;
  return std::vector<StreamAddress>{std::move(one)};
}

Result<MaybeAddresses> ListSource::Look(MonotonicNanos) { return std::exchange(addresses_, std::nullopt); }

Result<std::vector<StreamAddress>> ParseStreamList(std::string_view text, const std::string& file,
                                                   std::int64_t dp_size) {
  std::vector<StreamAddress> addresses;
  std::map<std::string, std::size_t> line_of_name;
  std::size_t line_number = 0;
  while (!text.empty()) {
    const std::string_view line = TakeLine(&text);
    const std::string place = fmt::format("{}, line {}", file, ++line_number);
    std::vector<std::string> columns = Columns(line);
    if (columns.empty()) continue;
    Result<std::vector<StreamAddress>> of_line = ParseLine(std::move(columns), place, dp_size);
    if (!of_line) return of_line;
    for (StreamAddress& address : *of_line) {
      const auto [known, added] = line_of_name.emplace(address.name, line_number);
      if (!added) {
        return MakeError(ErrorCode::kInvalidArgument,
                         fmt::format("{}: name \"{}\": is the name of line {}, too; allowed: different names", place,
                                     ShortText(address.name), known->second));
      }
      addresses.push_back(std::move(address));
    }
  }
  return addresses;
}

// What is there may be replaced at any time, also by what would block whoever opens or reads it.
Result<MaybeAddresses> FileSource::Look(MonotonicNanos) {
  const Descriptor file(open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  struct stat status {};
  if (file.fd() < 0 || fstat(file.fd(), &status) != 0) {
    stamp_.reset();
    return CannotRead(path_);
  }
  if (!S_ISREG(status.st_mode)) {
    stamp_.reset();
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{}: is no regular file; allowed: one that can be read again", path_));
  }
  const Stamp stamp{status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_size, status.st_ino};
  if (stamp_ == stamp) return MaybeAddresses();
  stamp_ = stamp;
  const Result<std::string> text = ReadAll(file.fd(), path_);
  if (!text) return tl::unexpected<Error>(text.error());
  Result<std::vector<StreamAddress>> addresses = ParseStreamList(*text, path_, dp_size_);
  if (!addresses) return tl::unexpected<Error>(addresses.error());
  return MaybeAddresses(*std::move(addresses));
}

DnsSource::DnsSource(Name name, MonotonicNanos interval, Lookup lookup)
    : name_(std::move(name)), interval_(interval), lookup_(std::move(lookup)) {}

Result<MaybeAddresses> DnsSource::Look(MonotonicNanos now) {
  if (next_look_ && now < *next_look_) return MaybeAddresses();
  const std::optional<Result<HostAddresses>> answer = lookup_();
  if (!answer) return MaybeAddresses();
  next_look_ = now + interval_;
  const Result<HostAddresses>& hosts = *answer;
  if (!hosts) return tl::unexpected<Error>(hosts.error());
  std::vector<StreamAddress> addresses;
  for (const std::string& host : *hosts) {
    Result<std::vector<StreamAddress>> of_host = WithRanks(AddressAt(name_, host), name_.ranks, name_.host);
    if (!of_host) return tl::unexpected<Error>(of_host.error());
    std::ranges::move(*of_host, std::back_inserter(addresses));
  }
  return MaybeAddresses(std::move(addresses));
}

bool IsDnsName(std::string_view text) noexcept { return text.starts_with(kDnsScheme); }

Result<DnsSource::Name> ParseDnsName(const std::string& text, std::string_view flag, std::int64_t dp_size) {
  const auto refuse = [&](std::string_view reason) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{}: \"{}\": {}; allowed: dns://NAME:PORT or dns://NAME:PORT,REPLAY_PORT", flag,
                                 ShortText(text), reason));
  };
  const Result<RankedText> split = SplitRankWords(text, flag);
  if (!split) return tl::unexpected<Error>(split.error());
  std::string_view rest = std::string_view(split->address).substr(kDnsScheme.size());
  DnsSource::Name name;
  name.ranks = split->ranks.WithDpSize(dp_size);
  if (const std::size_t comma = rest.find(','); comma != std::string_view::npos) {
    name.replay_port = ParsePort(rest.substr(comma + 1));
    if (!name.replay_port) return refuse("the replay port is not a number from 1 to 65535");
    rest = rest.substr(0, comma);
  }
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return refuse("the port is missing");
  name.host = rest.substr(0, colon);
  if (name.host.empty() || name.host.find_first_of("/:[] \t") != std::string::npos) return refuse("that is no name");
  const std::optional<std::uint16_t> port = ParsePort(rest.substr(colon + 1));
  if (!port) return refuse("the port is not a number from 1 to 65535");
  name.port = *port;
  if (name.replay_port == name.port) return refuse("both ports are the same");
  const auto ranks =
      WithRanks(AddressAt(name, name.host), name.ranks, fmt::format("{}: \"{}\"", flag, ShortText(text)));
  if (!ranks) return tl::unexpected<Error>(ranks.error());
  return name;
}

}  // namespace kvwire::engine
