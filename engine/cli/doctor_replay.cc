// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/doctor_replay.h"

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "kv_events/digest.h"
#include "kv_events/wire/decoder.h"
#include "kv_events/wire/extensions.h"

namespace kvwire::engine {

namespace {

constexpr MonotonicNanos kSecond = 1'000'000'000;
constexpr MonotonicNanos kIdle = 3 * kSecond;
constexpr MonotonicNanos kStateIdle = 8 * kSecond;  // an engine may take 5 s to walk
constexpr MonotonicNanos kMost = 60 * kSecond;
constexpr const char* kCheck = "replay answer";
constexpr const char* kHelloCheck = "hello";
constexpr const char* kForeign = "Something else answers there than a publisher of KV-cache events.";

std::vector<std::uint8_t> FromTheBeginning() {
  const SequenceFrame start = EncodeSequence(0);
  return {start.begin(), start.end()};
}

std::string Numbers(const Hello& hello) {
  const std::string newest = hello.next <= hello.first ? "nothing published" : fmt::format("newest {}", hello.next - 1);
  return newest + (hello.oldest ? fmt::format(", oldest kept {}", *hello.oldest) : ", nothing kept");
}

}  // namespace

DoctorReplay::DoctorReplay(ReplayLinkFactory links, Dialect dialect, DoctorSample* sample)
    : traits_(TraitsOf(dialect)), sample_(sample), replay_(links), hello_(std::move(links), kIdle) {}

void DoctorReplay::Start(MonotonicNanos now) {
  give_up_at_ = now + kMost;
  replay_.Start(FromTheBeginning(), traits_.replay == ReplayForm::kState ? kStateIdle : kIdle, now);
  if (traits_.extensions) hello_.Start(now);
}

bool DoctorReplay::Poll(MonotonicNanos now) {
  const bool replayed = replay_.active() && PollReplay(now);
  const bool greeted = hello_.active() && PollHello(now);
  return replayed || greeted;
}

std::vector<FrameLink*> DoctorReplay::links() const {
  std::vector<FrameLink*> links;
  for (FrameLink* const link : {replay_.link(), hello_.link()}) {
    if (link != nullptr) links.push_back(link);
  }
  return links;
}

bool DoctorReplay::PollReplay(MonotonicNanos now) {
  if (now >= give_up_at_) {
    end_ = End::kTime;
    replay_.Stop();
    return false;
  }
  const std::optional<InFrames> frames = replay_.Poll(now);
  if (!frames) {
    if (replay_.Silent(now)) {
      end_ = End::kSilence;
      replay_.Stop();
    }
    return false;
  }
  const std::vector<FrameView> views(frames->begin(), frames->end());
  const std::optional<ReplayMessage> message = ParseReplayMessage(views);
  if (!message) {
    ++malformed_;
  } else if (message->end) {
    end_ = End::kMark;
    replay_.Stop();
  } else {
    TakeReplayed(*message);
  }
  return true;
}

void DoctorReplay::TakeReplayed(const ReplayMessage& message) {
  if (messages_++ == 0) oldest_ = message.sequence;
  newest_ = message.sequence;
  if (message.topic) {
    with_topic_ = true;
    sample_->Add({reinterpret_cast<const char*>(message.topic->data()), message.topic->size()}, message.sequence,
                 message.payload);
  } else {
    sample_->AddWithoutTopic(message.sequence, message.payload);
  }
  if (traits_.replay != ReplayForm::kState) return;
  const auto decoded = DecodeBatch(message.payload);
  if (!decoded) return;  // the sample says so
  bool at_first = true;
  decoded->batch.Visit([&](const auto& event) {
    using Event = std::decay_t<decltype(event)>;
    if constexpr (std::is_same_v<Event, BlockStored>) stored_ += event.block_hashes.size();
    is_state_ =
        is_state_ && (std::is_same_v<Event, BlockStored> || (std::is_same_v<Event, AllBlocksCleared> && at_first));
    at_first = false;
  });
}

bool DoctorReplay::PollHello(MonotonicNanos now) {
  Hello hello;
  greeting_ = hello_.Poll(now, &hello);
  if (greeting_ == HelloClient::Outcome::kHello) said_ = std::move(hello);
  return greeting_ == HelloClient::Outcome::kHello || greeting_ == HelloClient::Outcome::kOther;
}

void DoctorReplay::Report(DoctorReport* report) const {
  if (malformed_ > 0) {
    report->Ill(kCheck, fmt::format("{} messages are no replay", malformed_), kForeign);
  } else if (end_ == End::kTime) {
    report->Ill(kCheck, fmt::format("no end after {} s, at number {}", kMost / kSecond, newest_),
                "The publisher sends without end, or the connection is slow.");
  } else if (end_ != End::kMark && messages_ == 0) {
    report->Ill(kCheck, "none in time",
                "The publisher does not serve its replay socket: its thread is stopped or busy.");
  } else if (end_ != End::kMark) {
    report->Ill(kCheck, fmt::format("it stops after number {}, without the end mark", newest_),
                "The publisher drops what does not fit into its socket's queue, the end mark too (vLLM's holds 1,000 "
                "messages), or it ended.");
  } else if (traits_.replay == ReplayForm::kState) {
    ReportState(report);
  } else {
    ReportHistory(report);
  }
  ReportHello(report);
}

void DoctorReplay::ReportHistory(DoctorReport* report) const {
  if (messages_ == 0) {
    report->Well(kCheck, "the end mark: nothing was published yet, or nothing is kept");
    return;
  }
  const std::string_view layout = with_topic_ ? "with topics" : "without topics (the legacy layout)";
  report->Well(kCheck, fmt::format("{} messages, {} to {}, {}{}", messages_, oldest_, newest_, layout,
                                   oldest_ > 0 ? "; what came before is gone" : ""));
}

void DoctorReplay::ReportState(DoctorReport* report) const {
  constexpr const char* kOtherDialect = "That is not xllm's form: name the publisher's --dialect, or set its snapshot.";
  if (messages_ == 0) {
    report->Ill(kCheck, "the end mark alone: there was no state to give",
                "The engine gave none within 5 s, batches were lost meanwhile, or it is above 64 MiB; or the publisher "
                "keeps a history, and has none yet.");
  } else if (messages_ > 1) {
    report->Ill(kCheck, fmt::format("{} messages; allowed: one, the whole state", messages_), kOtherDialect);
  } else if (with_topic_) {
    report->Ill(kCheck, "4 frames, with a topic; allowed: 3, without one", kOtherDialect);
  } else if (!is_state_) {
    report->Ill(kCheck, "more than a state; allowed: AllBlocksCleared first, then BlockStored alone", kOtherDialect);
  } else {
    report->Well(kCheck, fmt::format("the whole state at number {}: {} blocks stored", newest_, stored_));
  }
}

void DoctorReplay::ReportHello(DoctorReport* report) const {
  if (!traits_.extensions) {
    report->Unknown(kHelloCheck, fmt::format("not asked: the dialect {} has none", traits_.name));
  } else if (said_) {
    const std::string heartbeats = said_->heartbeat_interval_ms == 0
                                       ? std::string("no heartbeats")
                                       : fmt::format("heartbeats every {} ms", said_->heartbeat_interval_ms);
    report->Well(kHelloCheck, fmt::format("kvwire's own: epoch {:016x}, rank {}, {}, {}, {}, removals {}", said_->epoch,
                                          said_->data_parallel_rank, Numbers(*said_), heartbeats,
                                          said_->snapshots ? "snapshots" : "no snapshots",
                                          said_->removals == Removals::kExact ? "exact" : "per_copy"));
    ReportHeld(report);
  } else if (greeting_ == HelloClient::Outcome::kOther) {
    report->Unknown(kHelloCheck, "no kvwire extension (vLLM's own ROUTER)");
  } else {
    report->Unknown(kHelloCheck, "no answer in time");
  }
}

void DoctorReplay::ReportHeld(DoctorReport* report) const {
  if (!said_->digest) {
    report->Unknown("held", "the publisher has no digest");
    return;
  }
  std::uint64_t blocks = 0;
  for (const StateDigest::Entry& entry : *said_->digest) blocks += entry.count;
  report->Well("held", fmt::format("{} blocks: {}", blocks, DescribeDigest(*said_->digest)));
}

}  // namespace kvwire::engine
