// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/stream_options.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "engine/cli/curve_option.h"
#include "engine/cli/number_options.h"
#include "kv_events/escape_text.h"
#include "kv_events/subscribe/rank_group.h"
#include "kv_events/transport/host_lookup.h"

namespace kvwire::engine {

namespace {

constexpr const char* kFlag = "--endpoint";

std::vector<std::string> Endpoints(const StreamOptions& options) {
  if (!options.endpoints.empty() || !options.file.empty()) return options.endpoints;
  return {StreamOptions::kDefaultEndpoint};
}

bool NamesTwo(const std::string& text) {
  const std::size_t first = text.find("://");
  return first != std::string::npos && text.find("://", first + 1) != std::string::npos;
}

// Whether one address is all that is said: of a stream, or of an instance.
bool OneAddress(const StreamOptions& options) {
  const std::vector<std::string> endpoints = Endpoints(options);
  return endpoints.size() == 1 && options.file.empty() && !IsDnsName(endpoints[0]);
}

tl::unexpected<Error> Refuse(std::string message) { return MakeError(ErrorCode::kInvalidArgument, std::move(message)); }

// The streams of one --endpoint that is no name to look up.
Result<std::vector<StreamAddress>> ListedAddresses(const std::string& text, const StreamOptions& options) {
  const Result<RankedText> split = SplitRankWords(text, kFlag);
  if (!split) return tl::unexpected<Error>(split.error());
  const bool apart = OneAddress(options) && !options.replay_endpoint.empty();
  Result<StreamAddress> address =
      ParseStreamAddress(apart ? fmt::format("{},{}", split->address, options.replay_endpoint) : split->address, kFlag);
  if (!address) return tl::unexpected<Error>(address.error());
  return WithRanks(*std::move(address), split->ranks.WithDpSize(options.dp_size), kFlag);
}

}  // namespace

void AddStreamOptions(CLI::App& command, StreamOptions* options) {
  command
      .add_option(kFlag, options->endpoints,
                  "Address of an event stream, also ENDPOINT,REPLAY_ENDPOINT; or dns://NAME:PORT[,REPLAY_PORT], for "
                  "every address of the name. Then ,rank=R: the data-parallel rank that it is of; ,dp-size=N: as "
                  "--dp-size. May be given several times")
      ->take_all()
      ->allow_extra_args(false)
      ->type_name("ADDRESS")
      ->default_str(StreamOptions::kDefaultEndpoint);
  command.add_option("--replay-endpoint", options->replay_endpoint,
                     "Address of the publisher's replay socket, of one stream; gaps stay without it");
  command.add_option("--endpoints-file", options->file,
                     "A line per stream, ENDPOINT [REPLAY_ENDPOINT [TOPIC [NAME]]] [rank=R] [dp-size=N]; read again "
                     "when it changes");
  AddDpSize(command, &options->dp_size);
  command.add_option("--topic", options->topic, "Only topics with this beginning");
  AddSeconds(command, "--dns-interval", &options->dns_interval, "Seconds from one look-up of dns:// to the next");
  AddCurveOption(command, &options->curve);
  AddSeconds(
      command, "--link-heartbeat", &options->link_heartbeat,
      "Ask a connection for a sign of life after so many seconds, and take it for dead after three times as many; "
      "0: never, for publishers whose ZeroMQ does not answer (libzmq before 4.2)");
}

std::chrono::milliseconds LinkHeartbeat(const StreamOptions& options) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::nanoseconds(NanosOf(options.link_heartbeat)));
}

void AddDpSize(CLI::App& command, std::int64_t* dp_size) {
  AddCountFunction(
      command, "--dp-size", 1, {1, kMaxDpSize},
      [dp_size](std::uint64_t size) { *dp_size = static_cast<std::int64_t>(size); },
      "Data-parallel ranks of each instance. An address without a rank is that of rank 0; rank R is at its port + R");
}

std::optional<OneEndpoint> OnlyEndpoint(const StreamOptions& options) {
  if (!OneAddress(options)) return std::nullopt;
  const Result<RankedText> text = SplitRankWords(Endpoints(options)[0], kFlag);
  // What is wrong is said by MakeSources, here and below.
  if (!text) return std::nullopt;
  const RankWords ranks = text->ranks.WithDpSize(options.dp_size);
  if (ranks.dp_size && (ranks.rank || *ranks.dp_size > 1)) return std::nullopt;
  const std::string& endpoint = text->address;
  if (!options.replay_endpoint.empty()) return OneEndpoint{endpoint, options.replay_endpoint, ranks.rank};
  const Result<StreamAddress> address = ParseStreamAddress(endpoint, kFlag);
  if (!address && NamesTwo(endpoint)) return std::nullopt;
  if (!address || !address->replay_endpoint) return OneEndpoint{endpoint, {}, ranks.rank};
  return OneEndpoint{address->name, address->replay_endpoint->ToString(), ranks.rank};
}

Result<std::vector<std::unique_ptr<StreamSource>>> MakeSources(const StreamOptions& options) {
  const bool one = OneAddress(options);
  if (!one && !options.replay_endpoint.empty()) {
    return Refuse(
        fmt::format("--replay-endpoint \"{}\": it is not said of which stream; allowed: --endpoint "
                    "ENDPOINT,REPLAY_ENDPOINT for each, dns://NAME:PORT,REPLAY_PORT, or a column of "
                    "--endpoints-file",
                    ShortText(options.replay_endpoint)));
  }
  std::vector<StreamAddress> listed;
  std::vector<std::unique_ptr<StreamSource>> sources;
  for (const std::string& text : Endpoints(options)) {
    if (IsDnsName(text)) {
      Result<DnsSource::Name> name = ParseDnsName(text, kFlag, options.dp_size);
      if (!name) return tl::unexpected<Error>(name.error());
      const auto lookup = std::make_shared<HostLookup>(name->host);
      sources.push_back(std::make_unique<DnsSource>(*std::move(name), NanosOf(std::max(options.dns_interval, 1.0)),
                                                    [lookup] { return lookup->Poll(); }));
      continue;
    }
    Result<std::vector<StreamAddress>> ranks = ListedAddresses(text, options);
    if (!ranks) return tl::unexpected<Error>(ranks.error());
    for (StreamAddress& address : *ranks) {
      const bool twice = std::any_of(listed.begin(), listed.end(),
                                     [&](const StreamAddress& each) { return each.name == address.name; });
      if (twice) return Refuse(fmt::format("{} \"{}\" is given twice; allowed: once", kFlag, ShortText(address.name)));
      listed.push_back(std::move(address));
    }
  }
  if (!listed.empty()) sources.insert(sources.begin(), std::make_unique<ListSource>(std::move(listed)));
  if (!options.file.empty()) sources.push_back(std::make_unique<FileSource>(options.file, options.dp_size));
  return sources;
}

}  // namespace kvwire::engine
