// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/cli/commands.h"
#include "engine/cli/dialect_option.h"
#include "engine/cli/doctor_replay.h"
#include "engine/cli/doctor_report.h"
#include "engine/cli/doctor_sample.h"
#include "engine/cli/number_options.h"
#include "engine/cli/output.h"
#include "engine/cli/stop_signal.h"
#include "engine/cli/stream_options.h"
#include "engine/cli/stream_source.h"
#include "engine/cli/tap_format.h"
#include "engine/cli/zmtp_probe.h"
#include "kv_events/clock.h"
#include "kv_events/escape_text.h"
#include "kv_events/subscribe/applied_payloads.h"
#include "kv_events/subscribe/dialect.h"
#include "kv_events/subscribe/proof_client.h"
#include "kv_events/subscribe/watched_stream.h"
#include "kv_events/transport/zmq_context.h"
#include "kv_events/transport/zmq_link.h"
#include "kv_events/wire/frames.h"

namespace kvwire::engine {

namespace {

constexpr int kExitIll = 1;
constexpr int kExitFailed = 4;
constexpr std::chrono::milliseconds kProbeTime(3000);
constexpr double kLargestSkew = 2;  // seconds
constexpr MonotonicNanos kProofIdle = 3'000'000'000;
constexpr const char* kSameCheck = "same publisher";

struct DoctorOptions {
  std::string endpoint;
  std::string replay_endpoint;
  std::string topic;
  std::string dialect = std::string(TraitsOf(Dialect::kVllm).name);
  std::int64_t dp_size = 1;
  double wait = 10;
  bool json = false;
};

std::string_view AsText(FrameView frame) { return {reinterpret_cast<const char*>(frame.data()), frame.size()}; }

bool Publishes(const ProbeResult& probe) { return probe.socket_type == "PUB" || probe.socket_type == "XPUB"; }
bool Replays(const ProbeResult& probe) { return probe.socket_type == "ROUTER"; }

// Whether a ZeroMQ socket may get through: an old one does not say what it is.
bool CanAsk(const ProbeResult& probe, bool fits) {
  const bool open = probe.mechanism == "NULL" || probe.mechanism.empty();
  return probe.speech == ProbeResult::Speech::kZmtp && open && (fits || probe.socket_type.empty());
}

// The endpoint with the address that the probe found for its host.
Endpoint Found(Endpoint endpoint, const ProbeResult& probe) {
  if (endpoint.scheme != Endpoint::Scheme::kTcp || probe.addresses.empty()) return endpoint;
  const std::string& host = probe.addresses.front();
  endpoint.host = host.find(':') == std::string::npos ? host : fmt::format("[{}]", host);
  return endpoint;
}

// Of message `number`, which came live and was asked for.
void ReportProof(ProofClient::Outcome outcome, SequenceNumber number, DoctorReport* report) {
  constexpr const char* kOther =
      "The replay address may be another publisher's: what is lost would be replaced by what another engine holds.";
  switch (outcome) {
    case ProofClient::Outcome::kSame:
      report->Well(kSameCheck, fmt::format("message {} has the same bytes live and in the replay", number));
      return;
    case ProofClient::Outcome::kDiffers:
      report->Ill(kSameCheck, fmt::format("message {} has other bytes in the replay than it had live", number), kOther);
      return;
    case ProofClient::Outcome::kAbsent:
      report->Ill(kSameCheck, fmt::format("the replay has nothing from message {} on, which came live", number),
                  std::string(kOther) + " Or the publisher keeps nothing (buffer_steps).");
      return;
    case ProofClient::Outcome::kGone:
      report->Unknown(kSameCheck, fmt::format("the replay no longer has message {}, which came live", number));
      return;
    case ProofClient::Outcome::kSilent:
    case ProofClient::Outcome::kNothing:
      report->Unknown(kSameCheck, "the replay did not answer in time");
      return;
  }
}

// What came live.
struct LiveAnswer {
  bool connected = false;
  std::size_t malformed = 0;
  std::size_t wanted = 0;       // messages whose topic is the one that was asked for
  std::optional<double> after;  // seconds until the first of them
  SequenceNumber first = 0;
  std::uint64_t content = 0;   // of that one
  std::optional<double> skew;  // this machine's clock less its batch's time
};

// One look at a publisher, from outside to inside.
class Doctor {
 public:
  Doctor(const DoctorOptions& options, StreamAddress address) : options_(options), address_(std::move(address)) {}

  const DoctorReport& Examine();

 private:
  void CheckReach(const std::string& prefix, const Endpoint& endpoint, const ProbeResult& probe);
  void CheckSpeech(const std::string& prefix, const ProbeResult& probe);
  void CheckSockets();
  void LookForReplay();
  void Listen();
  bool TakeLive(MonotonicNanos begin);
  void CheckLive();
  void CheckTopic();
  void CheckContent();
  void CheckClock();
  void CheckReplay();
  void CompareWithReplay();

  const DoctorOptions options_;
  const StreamAddress address_;
  DoctorReport report_;
  ProbeResult live_probe_;
  std::optional<ProbeResult> replay_probe_;
  std::unique_ptr<ZmqLink> live_link_;
  LiveAnswer live_;
  DoctorSample sample_;
  std::optional<DoctorReplay> replay_;
};

const DoctorReport& Doctor::Examine() {
  live_probe_ = Probe(address_.endpoint, kProbeTime);
  CheckReach("", address_.endpoint, live_probe_);
  CheckSpeech("", live_probe_);
  if (address_.replay_endpoint) {
    replay_probe_ = Probe(*address_.replay_endpoint, kProbeTime);
    CheckReach("replay ", *address_.replay_endpoint, *replay_probe_);
    CheckSpeech("replay ", *replay_probe_);
  }
  CheckSockets();
  Listen();
  CheckLive();
  CheckTopic();
  CheckContent();
  CheckClock();
  CheckReplay();
  return report_;
}

void Doctor::CheckReach(const std::string& prefix, const Endpoint& endpoint, const ProbeResult& probe) {
  if (endpoint.scheme == Endpoint::Scheme::kTcp) {
    const std::string found = fmt::format("{}: {}", endpoint.host, fmt::join(probe.addresses, ", "));
    if (!probe.resolve_error.empty()) {
      report_.Ill(prefix + "resolved", probe.resolve_error,
                  "Correct the host, or give its address; an IPv6 address in brackets.");
    } else {
      report_.Well(prefix + "resolved", found);
    }
  }
  const std::string address = endpoint.ToString();
  if (probe.connected) {
    report_.Well(prefix + "connected", address);
  } else if (!probe.resolve_error.empty()) {
    report_.Unknown(prefix + "connected", "not tried");
  } else {
    report_.Ill(
        prefix + "connected", fmt::format("{}: {}", address, probe.connect_error),
        prefix.empty()
            ? "Nobody listens there. Is the engine up, and are its events on (--kv-events-config)? A publisher "
              "whose own endpoint is a plain HOST:PORT connects and does not listen: let it bind (tcp://*:PORT), "
              "or listen for it with kvwire tap --bind."
            : "Nobody listens there. Has the engine a replay_endpoint, and does it add its rank to the port?");
  }
}

void Doctor::CheckSpeech(const std::string& prefix, const ProbeResult& probe) {
  const std::string check = prefix + "handshake";
  if (!probe.connected) {
    report_.Unknown(check, "not connected");
    return;
  }
  switch (probe.speech) {
    case ProbeResult::Speech::kNothing:
      report_.Ill(check, "connected, and nothing was said",
                  "What listens there is no ZeroMQ socket, or something between lets no bytes through (a proxy, a "
                  "load balancer, a stopped process).");
      return;
    case ProbeResult::Speech::kOther:
      report_.Ill(check, fmt::format("no ZeroMQ: it begins with \"{}\"", probe.first_bytes),
                  "That is another service's port.");
      return;
    case ProbeResult::Speech::kZmtp:
      break;
  }
  const std::string spoken = fmt::format("ZMTP {}.{}, mechanism {}", probe.major, probe.minor, probe.mechanism);
  if (probe.mechanism == "NULL" || probe.mechanism.empty()) {
    report_.Well(check, spoken);
  } else {
    report_.Ill(check, spoken, "Only the mechanism NULL is spoken here; turn authentication off for this address.");
  }
}

// Which kind of socket is where.
void Doctor::CheckSockets() {
  const bool live_known = !live_probe_.socket_type.empty();
  const bool swapped = Replays(live_probe_) || (replay_probe_ && Publishes(*replay_probe_));
  const std::string advice =
      swapped ? "The two addresses are swapped: events come from a PUB or XPUB socket, replays from a ROUTER."
              : "An event endpoint is a PUB or XPUB socket.";
  if (!live_known) {
    report_.Unknown("direction", live_probe_.connected ? "the other side did not say its socket" : "not connected");
  } else if (Publishes(live_probe_)) {
    report_.Well("direction",
                 fmt::format("the publisher listens (socket {}), subscribers connect", live_probe_.socket_type));
  } else {
    report_.Ill(
        "direction", fmt::format("a socket {} listens at the event endpoint", live_probe_.socket_type),
        live_probe_.socket_type == "SUB"
            ? "That is a subscriber that listens for publishers, such as another router: the publisher connects "
              "to it, and cannot be watched there."
            : advice);
  }
  if (!replay_probe_) {
    LookForReplay();
  } else if (replay_probe_->socket_type.empty()) {
    report_.Unknown("replay socket", "not known");
  } else if (Replays(*replay_probe_)) {
    report_.Well("replay socket", "socket ROUTER");
  } else {
    report_.Ill("replay socket", fmt::format("a socket {} listens at the replay endpoint", replay_probe_->socket_type),
                swapped ? advice : "A replay endpoint is a ROUTER socket.");
  }
}

// Where nobody said one, the next port is looked at: many engines have it there.
void Doctor::LookForReplay() {
  constexpr std::string_view kWithout = "no --replay-endpoint given: what is lost stays lost";
  Endpoint next = address_.endpoint;
  if (next.scheme == Endpoint::Scheme::kTcp && live_probe_.connected && *next.port < 65535) {
    next.port = static_cast<std::uint16_t>(*next.port + 1);
    if (Replays(Probe(next, kProbeTime))) {
      report_.Unknown("replay socket", std::string(kWithout),
                      fmt::format("A ROUTER listens at {}: --replay-endpoint {}", next.ToString(), next.ToString()));
      return;
    }
  }
  report_.Unknown("replay socket", std::string(kWithout), "Give the engine a replay_endpoint, and name it here.");
}

// Waits for a live message, and for the answer to a replay of everything.
void Doctor::Listen() {
  const std::shared_ptr<ZmqContext> context = ZmqContext::Shared();
  LinkOptions link;
  link.watch_peers = true;
  link.receive_hwm = 100'000;
  link.max_message_bytes = static_cast<std::int64_t>(DecodeLimits().max_payload_bytes);
  if (CanAsk(live_probe_, Publishes(live_probe_))) {
    if (auto live = ZmqLink::Connect(context, LinkKind::kSub, Found(address_.endpoint, live_probe_), link))
      live_link_ = *std::move(live);
  }
  if (replay_probe_ && CanAsk(*replay_probe_, Replays(*replay_probe_))) {
    replay_.emplace(
        ReplayLinksTo(context, std::make_shared<EndpointLookup>(Found(*address_.replay_endpoint, *replay_probe_))),
        *DialectByName(options_.dialect), &sample_);
  }
  const Clock& clock = SystemClock::Get();
  const MonotonicNanos begin = clock.Now();
  if (replay_) replay_->Start(begin);
  bool live_open = live_link_ != nullptr;
  bool replay_open = replay_.has_value();
  while ((live_open || replay_open) && !StopRequested()) {
    bool work = live_open && TakeLive(begin);
    const MonotonicNanos now = clock.Now();
    if (replay_open && replay_->Poll(now)) work = true;
    live_open = live_open && live_.wanted == 0 && now - begin < NanosOf(options_.wait);
    replay_open = replay_open && !replay_->over();
    if (work) continue;
    constexpr std::chrono::milliseconds kLook(20);
    std::vector<ZmqLink*> links;
    if (live_open) links.push_back(live_link_.get());
    if (replay_open) {
      for (FrameLink* const each : replay_->links()) links.push_back(static_cast<ZmqLink*>(each));
    }
    WaitForInput(links, nullptr, kLook);
  }
}

bool Doctor::TakeLive(MonotonicNanos begin) {
  live_.connected = live_.connected || live_link_->peers().connected > 0;
  const std::optional<InFrames> frames = live_link_->TryReceive();
  if (!frames) return false;
  live_.connected = true;
  const std::vector<FrameView> views(frames->begin(), frames->end());
  const std::optional<LiveMessage> message = ParseLiveMessage(views);
  if (!message) {
    ++live_.malformed;
    return true;
  }
  sample_.Add(AsText(message->topic), message->sequence, message->payload);
  if (!AsText(message->topic).starts_with(options_.topic)) return true;
  if (live_.wanted++ > 0) return true;
  live_.after = static_cast<double>(SystemClock::Get().Now() - begin) * 1e-9;
  live_.first = message->sequence;
  live_.content = AppliedPayloads::ContentOf(message->payload);
  const auto decoded = DecodeBatch(message->payload);
  if (decoded && !decoded->without_time) live_.skew = SystemClock::Get().WallSeconds() - decoded->batch.ts;
  return true;
}

void Doctor::CheckLive() {
  if (live_link_ == nullptr) {
    report_.Unknown("subscribed", "there is no publisher to subscribe to");
    report_.Unknown("first message", "not subscribed");
    return;
  }
  if (live_.connected) {
    report_.Well("subscribed", "the connection stands");
  } else {
    report_.Ill("subscribed", "a subscriber does not get through, though a plain connection does",
                "The publisher may be stopped, or refuse connections for lack of descriptors.");
  }
  if (live_.malformed > 0) {
    report_.Ill("first message", fmt::format("{} messages are not topic, number, payload", live_.malformed),
                "Something else than KV-cache events is published there.");
  } else if (live_.after) {
    report_.Well("first message", fmt::format("number {} after {:.1f} s", live_.first, *live_.after));
  } else {
    report_.Ill("first message", fmt::format("none within {:g} s", options_.wait),
                "An engine publishes only when blocks come or go: send it a request meanwhile, or give --wait more "
                "time. If requests run, prefix caching or the events are off.");
  }
}

void Doctor::CheckTopic() {
  if (sample_.topics().empty()) {
    report_.Unknown("topic", "no message with a topic came");
    return;
  }
  std::vector<std::string> topics;
  bool wanted = false;
  for (const std::string& topic : sample_.topics()) {
    topics.push_back(fmt::format("\"{}\"", ShortText(topic)));
    wanted = wanted || topic.starts_with(options_.topic);
  }
  const std::string seen = fmt::format("{}", fmt::join(topics, ", "));
  if (!wanted) {
    report_.Ill("topic", fmt::format("{}, and none begins with \"{}\"", seen, ShortText(options_.topic)),
                "Subscribe to what is published; an empty topic takes everything.");
  } else {
    report_.Well("topic", seen);
  }
}

void Doctor::CheckContent() {
  if (sample_.messages() == 0) {
    for (const char* const check : {"rank", "block size", "format"}) report_.Unknown(check, "no message came");
    return;
  }
  if (sample_.ranks().size() > 1) {
    report_.Ill("rank", fmt::format("several in one stream: {}", fmt::join(sample_.ranks(), ", ")),
                "Each data-parallel rank has a port of its own, and numbers of its own; something mixes them.");
  } else if (sample_.ranks().empty()) {
    report_.Well("rank", "the batches name none");
  } else if (address_.rank && *sample_.ranks().begin() != *address_.rank) {
    report_.Ill("rank", fmt::format("{} at the address of rank {}", *sample_.ranks().begin(), *address_.rank),
                "Ports and ranks are mixed up: rank R of an instance is at the port of rank 0 + R.");
  } else {
    report_.Well("rank", fmt::format("{}", *sample_.ranks().begin()));
  }
  if (sample_.block_sizes().empty()) {
    report_.Unknown("block size", "no BlockStored came");
  } else {
    report_.Well("block size", fmt::format("{}", fmt::join(sample_.block_sizes(), ", ")));
  }
  if (!sample_.problem().empty()) {
    report_.Ill("format", sample_.problem(),
                "What cannot be read is left out, and what is held is then not known; kvwire tap --check shows the "
                "bytes.");
  } else if (sample_.events() == 0) {
    report_.Unknown("format", "no event came");
  } else {
    report_.Well("format", sample_.Format());
  }
}

void Doctor::CheckClock() {
  if (!live_.skew) {
    report_.Unknown("clock", "no live batch came");
    return;
  }
  if (std::abs(*live_.skew) <= kLargestSkew) {
    report_.Well("clock", fmt::format("the batch's time is {:.3f} s before its arrival", *live_.skew));
    return;
  }
  report_.Ill("clock",
              fmt::format("the batch's time is {:.3f} s {} its arrival", std::abs(*live_.skew),
                          *live_.skew > 0 ? "before" : "after"),
              "Set both machines' clocks by the same source (NTP); or the stream is a recording, or late.");
}

void Doctor::CheckReplay() {
  if (!replay_probe_) return;
  if (replay_) {
    CompareWithReplay();
    replay_->Report(&report_);
    return;
  }
  for (const char* const check : {kSameCheck, "replay answer", "hello"}) {
    report_.Unknown(check, "there is no replay socket to ask");
  }
}

// Whether the replay gives the bytes that came live.
void Doctor::CompareWithReplay() {
  if (TraitsOf(*DialectByName(options_.dialect)).replay == ReplayForm::kState) {
    report_.Unknown(kSameCheck, "not compared: the replay is a state");
    return;
  }
  if (!live_.after) {
    report_.Unknown(kSameCheck, "not compared: nothing came live, so whose the replay is rests on its address alone");
    return;
  }
  const Clock& clock = SystemClock::Get();
  ProofClient proof(ReplayLinksTo(ZmqContext::Shared(),
                                  std::make_shared<EndpointLookup>(Found(*address_.replay_endpoint, *replay_probe_))),
                    kProofIdle);
  proof.Start({live_.first, live_.content}, clock.Now());
  ProofClient::Outcome outcome = ProofClient::Outcome::kNothing;
  while (proof.active() && !StopRequested()) {
    outcome = proof.Poll(clock.Now());
    constexpr std::chrono::milliseconds kLook(20);
    std::vector<ZmqLink*> links;
    if (proof.link() != nullptr) links.push_back(static_cast<ZmqLink*>(proof.link()));
    if (proof.active()) WaitForInput(links, nullptr, kLook);
  }
  ReportProof(outcome, live_.first, &report_);
}

Result<std::vector<StreamAddress>> AddressesOf(const DoctorOptions& options) {
  constexpr std::string_view kField = "ENDPOINT";
  constexpr std::string_view kReplayFlag = "--replay-endpoint";
  if (IsDnsName(options.endpoint)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{}: \"{}\": doctor looks at one publisher; allowed: tcp://HOST:PORT, of one of the "
                                 "name's addresses",
                                 kField, ShortText(options.endpoint)));
  }
  const Result<RankedText> split = SplitRankWords(options.endpoint, kField);
  if (!split) return tl::unexpected<Error>(split.error());
  const bool apart = !options.replay_endpoint.empty();
  Result<StreamAddress> address = apart
                                      ? MakeStreamAddress(split->address, kField, options.replay_endpoint, kReplayFlag)
                                      : ParseStreamAddress(split->address, kField);
  if (!address) return tl::unexpected<Error>(address.error());
  const RankWords ranks = split->ranks.WithDpSize(options.dp_size);
  return WithRanks(*std::move(address), ranks, options.dp_size > 1 ? std::string_view("--dp-size") : kField);
}

// Of an instance: a report for each rank, one after the other, and what is to be said of them all.
int ExamineRanks(const DoctorOptions& options, const std::vector<StreamAddress>& addresses) {
  std::vector<std::int64_t> ill;
  Json ranks = Json::array();
  for (const StreamAddress& address : addresses) {
    Doctor doctor(options, address);
    const DoctorReport& report = doctor.Examine();
    if (report.NumIll() > 0) ill.push_back(*address.rank);
    if (options.json) {
      Json rank{{"dp_rank", *address.rank}, {"endpoint", address.endpoint.ToString()}};
      rank.update(report.AsJson());
      ranks.push_back(std::move(rank));
    } else {
      Print(fmt::format("rank {}: {}\n{}", *address.rank, EscapeText(address.endpoint.ToString()), report.Text()));
    }
    if (StopRequested()) break;
  }
  if (options.json) {
    Print(JsonLine({{"well", ill.empty()}, {"ranks", std::move(ranks)}}));
  } else if (!ill.empty()) {
    Print(fmt::format("of {} ranks ill: {}\n", addresses.size(), fmt::join(ill, ", ")));
  }
  return ill.empty() && !StopRequested() ? 0 : kExitIll;
}

int RunDoctor(const DoctorOptions& options) {
  const Result<std::vector<StreamAddress>> addresses = AddressesOf(options);
  if (!addresses) {
    PrintError("doctor", addresses.error().message);
    return kExitFailed;
  }
  if (addresses->size() > 1) return ExamineRanks(options, *addresses);
  Doctor doctor(options, addresses->front());
  const DoctorReport& report = doctor.Examine();
  Print(options.json ? JsonLine(report.AsJson()) : report.Text());
  return report.NumIll() == 0 && !StopRequested() ? 0 : kExitIll;
}

}  // namespace

void AddDoctorCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("doctor", "Say what is wrong with a publisher of KV-cache events, and what to do");
  const auto options = std::make_shared<DoctorOptions>();
  command
      ->add_option("ENDPOINT", options->endpoint,
                   "Address of the event stream, also ENDPOINT,REPLAY_ENDPOINT; then ,rank=R and ,dp-size=N")
      ->required();
  command->add_option("--replay-endpoint", options->replay_endpoint, "Address of the publisher's replay socket");
  command->add_option("--topic", options->topic, "What topics are to begin with");
  AddDialectOption(*command, &options->dialect);
  AddDpSize(*command, &options->dp_size);
  AddSeconds(*command, "--wait", &options->wait, "Wait so many seconds for the first message");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options, exit_code] { *exit_code = RunDoctor(*options); });
}

}  // namespace kvwire::engine
