// SPDX-License-Identifier: Apache-2.0
// An address; and, up to and after the first line break, the pair of a publisher's addresses.
#include <string>

#include "kv_events/transport/endpoint.h"
#include "tests/fuzz/fuzz_target.h"

namespace kvwire::fuzz {
namespace {

constexpr std::int64_t kRanks = 8;

void CheckError(const Error& error) {
  KVWIRE_PROMISE(IsOneLine(error.message));
  KVWIRE_PROMISE(error.message.find("endpoint") != std::string::npos);
}

// An address is read again as it says itself, for every rank.
void CheckAddress(std::string_view text) {
  const Result<Endpoint> endpoint = Endpoint::Parse(text, "endpoint");
  if (!endpoint) return CheckError(endpoint.error());
  const Result<Endpoint> again = Endpoint::Parse(endpoint->ToString(), "endpoint");
  KVWIRE_PROMISE(again.has_value());
  KVWIRE_PROMISE(*again == *endpoint);
  KVWIRE_PROMISE(Binds(*endpoint, SocketMode::kBind));
  KVWIRE_PROMISE(!Binds(*endpoint, SocketMode::kConnect));
  const Result<Endpoint> first = EndpointForRank(*endpoint, "endpoint", 0, kRanks);
  const Result<Endpoint> last = EndpointForRank(*endpoint, "endpoint", kRanks - 1, kRanks);
  KVWIRE_PROMISE(first.has_value() == last.has_value());
  if (!last) return CheckError(last.error());
  KVWIRE_PROMISE(*first == *endpoint);
  KVWIRE_PROMISE(Endpoint::Parse(last->ToString(), "endpoint") == *last);
}

// All ranks agree whether a pair is allowed.
void CheckPair(std::string_view publish, std::string_view replay) {
  KVEventsConfig config;
  config.endpoint = publish;
  config.replay_endpoint = replay;
  const Result<RankEndpoints> first = EndpointsForRank(config, 0, kRanks);
  const Result<RankEndpoints> last = EndpointsForRank(config, kRanks - 1, kRanks);
  KVWIRE_PROMISE(first.has_value() == last.has_value());
  if (!first) return CheckError(first.error());
  KVWIRE_PROMISE(first->replay.has_value());
}

}  // namespace
}  // namespace kvwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvwire;
  const std::string_view text = fuzz::AsText(data, size);
  const std::size_t end = text.find('\n');
  fuzz::CheckAddress(text);
  fuzz::CheckAddress(text.substr(0, end));
  if (end != std::string_view::npos) fuzz::CheckPair(text.substr(0, end), text.substr(end + 1));
  return 0;
}
