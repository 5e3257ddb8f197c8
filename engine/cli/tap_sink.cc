// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/tap_sink.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include "engine/cli/output.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

std::uint64_t WallNanos() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

tl::unexpected<Error> CannotWrite(const std::string& path) {
  return MakeError(ErrorCode::kUnavailable, fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

std::string Range(SequenceNumber from, SequenceNumber to) {
  return from == to ? fmt::format("message {}", from) : fmt::format("messages {} to {}", from, to);
}

// What the comparison with the engine lacks; else nothing.
std::string WhyUncompared(const AgainstEngine& against) {
  if (against.counts().other_life) return "the engine has begun anew, and the stream does not say so";
  if (!against.finished()) return against.WhyUnfinished();
  if (against.counts().agreed > 0) return {};
  return fmt::format("the engine was never compared: {}", against.counts().problem.empty()
                                                              ? "it published nothing, or stopped"
                                                              : EscapeText(against.counts().problem));
}

}  // namespace

Result<std::unique_ptr<TapSink>> TapSink::Create(const TapOutput& output) {
  std::unique_ptr<TapSink> sink(new TapSink(output));
  if (!output.record.empty()) {
    auto recorder = RecordingWriter::Create(output.record);
    if (!recorder) return tl::unexpected<Error>(recorder.error());
    sink->recorder_ = *std::move(recorder);
  }
  for (const auto& [path, file] :
       {std::pair(&output.dump_digests, &sink->digests_), {&output.dump_state, &sink->state_}}) {
    if (path->empty()) continue;
    file->reset(std::fopen(path->c_str(), "w"));
    if (!*file) return CannotWrite(*path);
  }
  return sink;
}

TapSink::TapSink(const TapOutput& output)
    : output_(output),
      checker_({output.removals, StreamChecker::Options().max_reports, output.rank},
               [this](const Violation& violation) {
                 if (!output_.check) return;
                 if (output_.json) {
                   PrintJson({{"violation", ViolationAsJson(violation)}});
                 } else {
                   Print(violation.ToString());
                 }
               }),
      digests_(nullptr, std::fclose),
      state_(nullptr, std::fclose) {}

TapSink::~TapSink() = default;

// Whole lines, in one piece: other streams print, too.
void TapSink::Print(std::string_view text) {
  if (output_.stream.empty()) {
    engine::Print(text);
    return;
  }
  const std::string name = EscapeText(output_.stream) + "  ";
  std::string named;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    named += name;
    named += text.substr(0, end);
    text.remove_prefix(end);
  }
  engine::Print(named);
}

void TapSink::PrintJson(const Json& value) {
  Json line = Json::object();
  if (!output_.stream.empty()) line["stream"] = output_.stream;
  line.update(value);
  engine::Print(JsonLine(line));
}

void TapSink::Notice(std::string_view kind, const std::string& text) {
  if (output_.json) {
    PrintJson({{std::string(kind), text}});
  } else {
    Print(fmt::format("{}: {}\n", kind, text));
  }
}

void TapSink::OnBatch(const StreamMessage& message, const DecodedBatch& batch) {
  Record(message);
  Show(message, batch);
  checker_.OnBatch(message, batch);
  if (against_ && checker_.comparable()) against_->OnApplied(message.sequence, batch.batch.data_parallel_rank);
  if (!digests_) return;
  const std::string line = fmt::format("{} {}\n", message.sequence, checker_.held().digest().ToString());
  if (std::fwrite(line.data(), 1, line.size(), digests_.get()) != line.size() && failed_) {
    failed_ = CannotWrite(output_.dump_digests);
  }
}

void TapSink::Show(const StreamMessage& message, const DecodedBatch& batch) {
  if (output_.quiet) return;
  if (shown_ >= output_.max_events_shown) {
    if (!more_noted_) Notice("note", "further events are not shown");
    more_noted_ = true;
    return;
  }
  if (output_.json) {
    PrintJson(BatchAsJson(message, batch));
  } else {
    Print(BatchAsText(message, batch, output_.max_events_shown - shown_));
  }
  shown_ += std::max<std::size_t>(batch.batch.size(), 1);
}

void TapSink::Record(const StreamMessage& message) {
  if (!recorder_) return;
  const Status appended = recorder_->Append(WallNanos(), message.sequence, message.topic, message.payload);
  if (!appended && failed_) failed_ = appended;
}

void TapSink::OnUndecodable(const StreamMessage& message, const DecodeError& error) {
  Record(message);
  Notice("undecodable", fmt::format("message {}: {}", message.sequence, EscapeText(error.message)));
  checker_.OnUndecodable(message, error);
}

void TapSink::OnRecovery(SequenceNumber from, SequenceNumber to) {
  Notice("recovery", fmt::format("{} missing, asking for a replay", Range(from, to)));
  checker_.OnRecovery(from, to);
}

void TapSink::OnHealed(SequenceNumber from, SequenceNumber to) {
  Notice("healed", fmt::format("{} replayed", Range(from, to)));
  checker_.OnHealed(from, to);
}

void TapSink::OnJoined(SequenceNumber from, SequenceNumber to) {
  Notice("joined", fmt::format("{} replayed, which came before the first one received", Range(from, to)));
  checker_.OnJoined(from, to);
}

void TapSink::OnGap(const StreamGap& gap) {
  Notice(gap.joined_late ? "joined late" : "gap",
         fmt::format("{} not received: {}", Range(gap.from, gap.to), kvwire::ToString(gap.reason)));
  checker_.OnGap(gap);
}

void TapSink::OnRestart(SequenceNumber last, std::optional<SequenceNumber> first_seen) {
  Notice("restart", first_seen ? fmt::format("message {} after {}: the publisher began anew", *first_seen, last)
                               : fmt::format("after message {}: the publisher began anew", last));
  checker_.OnRestart(last, first_seen);
  if (against_) against_->OnRestart();
}

void TapSink::OnContinuity(Continuity continuity) {
  checker_.OnContinuity(continuity);
  switch (continuity) {
    case Continuity::kInterrupted:
      Notice("interrupted", std::string(kvwire::ToString(continuity)));
      break;
    case Continuity::kConfirmed:
      Notice("confirmed", std::string(kvwire::ToString(continuity)));
      break;
    case Continuity::kUnconfirmed:
      Notice("unconfirmed", std::string(kvwire::ToString(continuity)));
      break;
    case Continuity::kForgotten:
      Notice("forgotten", std::string(kvwire::ToString(continuity)) + ": what it held is void");
      if (against_) against_->OnRestart();
      break;
    case Continuity::kSeveral:
      Notice("several", std::string(kvwire::ToString(continuity)) + "; give each its own");
      break;
  }
  HandOnStdout();
}

void TapSink::OnContradiction(SequenceNumber number, Contradiction contradiction) {
  Notice("contradiction", fmt::format("message {} {}", number, kvwire::ToString(contradiction)));
  checker_.OnContradiction(number, contradiction);
}

void TapSink::OnMalformed(std::size_t frame_count) {
  Notice("malformed", fmt::format("a message of {} frames", frame_count));
  checker_.OnMalformed(frame_count);
}

void TapSink::OnOtherTopic(SequenceNumber number) { checker_.OnOtherTopic(number); }

void TapSink::OnTopicUnknown() {
  Notice("unfiltered", "the replay names no topics (legacy layout): its messages are taken whatever their topic");
}

void TapSink::OnSnapshotBegin(SequenceNumber first) {
  Notice("snapshot", fmt::format("begins before message {}", first));
  checker_.OnSnapshotBegin(first);
}

void TapSink::OnSnapshotChunk(SequenceNumber number, const DecodedBatch& chunk) {
  checker_.OnSnapshotChunk(number, chunk);
}

void TapSink::OnSnapshotEnd(SequenceNumber next, const std::optional<DigestEntries>& digest) {
  checker_.OnSnapshotEnd(next, digest);
  if (against_ && next > 0 && checker_.comparable()) against_->OnApplied(next - 1, std::nullopt);
  Notice("snapshot", fmt::format("complete before message {}: {} blocks", next, checker_.held().size()));
}

void TapSink::OnSnapshotAbandoned() {
  Notice("snapshot", "abandoned");
  checker_.OnSnapshotAbandoned();
}

void TapSink::OnDigestDiffers(SequenceNumber next, const DigestEntries& theirs) {
  checker_.OnDigestDiffers(next, theirs);
}

void TapSink::OnState(const StreamStatus& status) {
  Notice("state", fmt::format("{}: {}", kvwire::ToString(status.state), status.Reason()));
}

void TapSink::CompareWith(std::unique_ptr<TruthClient> client) {
  against_ = std::make_unique<AgainstEngine>(std::move(client), &checker_.held());
}

void TapSink::LookAtEngine(MonotonicNanos now) {
  if (!against_) return;
  if (auto disagreement = against_->DoWork(now)) {
    checker_.OnDisagreement(disagreement->number, std::move(disagreement->what));
  }
}

CheckVerdict TapSink::Verdict() const {
  const CheckVerdict verdict = checker_.Verdict();
  return verdict == CheckVerdict::kClean && !WhyIncomplete().empty() ? CheckVerdict::kIncomplete : verdict;
}

std::string TapSink::WhyIncomplete() const {
  std::string why = checker_.WhyIncomplete();
  if (!why.empty() || !against_) return why;
  why = WhyUncompared(*against_);
  const std::string ranks = against_->WhyRanksDiffer();
  return why.empty() || ranks.empty() ? why : why + "; " + ranks;
}

void TapSink::Begins(const std::string& endpoint, const std::string& replay_endpoint, SocketMode mode) {
  const bool binds = mode == SocketMode::kBind;
  if (output_.json) {
    Json line{{binds ? "listening" : "connecting", endpoint}};
    if (!replay_endpoint.empty()) line["replay"] = replay_endpoint;
    PrintJson(line);
  } else {
    Print(fmt::format("{} {}{}{}\n", binds ? "listening on" : "connecting to", endpoint,
                      replay_endpoint.empty() ? "" : ", replay from ", replay_endpoint));
  }
  HandOnStdout();
}

Status TapSink::Finish(const EventStreamStats& stats) {
  if (recorder_) {
    const Status closed = recorder_->Close();
    if (!closed && failed_) failed_ = closed;
  }
  if (digests_ && std::fclose(digests_.release()) != 0 && failed_) failed_ = CannotWrite(output_.dump_digests);
  const Status dumped = DumpState();
  if (!dumped && failed_) failed_ = dumped;
  PrintSummary(stats);
  const Status printed = FlushStdout();
  if (!printed && failed_) failed_ = printed;
  return failed_;
}

Status TapSink::DumpState() {
  if (!state_) return {};
  bool written = true;
  checker_.held().Dump([this, &written](std::string_view line) {
    written = std::fwrite(line.data(), 1, line.size(), state_.get()) == line.size() && written;
    written = std::fputc('\n', state_.get()) != EOF && written;
  });
  if (std::fclose(state_.release()) != 0 || !written) return CannotWrite(output_.dump_state);
  return {};
}

void TapSink::PrintSummary(const EventStreamStats& stats) {
  const CheckCounts& counts = checker_.counts();
  const std::string_view verdict = kvwire::ToString(Verdict());
  const bool verdict_is_incomplete = Verdict() == CheckVerdict::kIncomplete;
  const std::string cause = checker_.WhyViolated();
  if (output_.json) {
    Json summary{{"messages", counts.batches + counts.undecodable},
                 {"replayed", stats.replayed},
                 {"events", counts.events},
                 {"blocks_stored", counts.blocks_stored},
                 {"blocks_removed", counts.blocks_removed},
                 {"cleared", counts.cleared},
                 {"gaps", counts.gaps},
                 {"missing", counts.missing},
                 {"healed", counts.healed},
                 {"restarts", counts.restarts},
                 {"interruptions", counts.interruptions},
                 {"undecodable", counts.undecodable},
                 {"rejected_events", stats.rejected_events},
                 {"malformed", stats.malformed},
                 {"duplicates", stats.duplicates},
                 {"other_topic", stats.other_topic},
                 {"held", checker_.held().size()},
                 {"synchronised", checker_.synchronised()},
                 {"digest", checker_.held().digest().ToString()}};
    if (against_) {
      const AgainstEngine::Counts& against = against_->counts();
      summary["against"] = {{"agreed", against.agreed},
                            {"disagreed", against.disagreed},
                            {"missed", against.missed},
                            {"unanswered", against.unanswered}};
    }
    for (const auto& [name, count] : {std::pair("left_out", stats.left_out),
                                      {"snapshots", stats.snapshots},
                                      {"superseded", stats.superseded},
                                      {"digests_compared", stats.digests_compared},
                                      {"digests_differed", stats.digests_differed},
                                      {"contradictions", stats.contradictions},
                                      {"skipped_parents", counts.skipped_parents},
                                      {"masked_events", counts.masked_events},
                                      {"without_time", counts.without_time}}) {
      if (count > 0) summary[name] = count;
    }
    if (!never_connected_.empty()) summary["never_connected"] = never_connected_;
    if (output_.check) {
      summary["violations"] = counts.violations;
      summary["unjudged"] = counts.unjudged;
      summary["verdict"] = verdict;
      if (!cause.empty()) summary["cause"] = cause;
      if (verdict_is_incomplete) summary["incomplete"] = WhyIncomplete();
    }
    PrintJson({{"summary", summary}});
  } else {
    Print(fmt::format("messages {} ({} replayed), events {}, blocks stored {}, removed {}, clears {}\n",
                      counts.batches + counts.undecodable, stats.replayed, counts.events, counts.blocks_stored,
                      counts.blocks_removed, counts.cleared));
    Print(fmt::format(
        "gaps {} ({} messages missing), healed {}, restarts {}, interruptions {}, undecodable {}, malformed {}\n",
        counts.gaps, counts.missing, counts.healed, counts.restarts, counts.interruptions, counts.undecodable,
        stats.malformed));
    if (stats.other_topic > 0) Print(fmt::format("left out {} replayed messages of other topics\n", stats.other_topic));
    if (stats.left_out > 0) {
      Print(fmt::format("left out {} live messages that may be of an earlier life\n", stats.left_out));
    }
    if (stats.snapshots > 0) {
      Print(fmt::format("snapshots {}, which stand for {} messages\n", stats.snapshots, stats.superseded));
    }
    if (stats.digests_compared > 0) {
      Print(fmt::format("digests compared with the publisher's {}, of which differed {}\n", stats.digests_compared,
                        stats.digests_differed));
    }
    if (counts.skipped_parents + counts.masked_events > 0) {
      Print(
          fmt::format("groups that skip blocks: {} parents never announced, {} events with tokens of skipped blocks\n",
                      counts.skipped_parents, counts.masked_events));
    }
    if (counts.without_time > 0) Print(fmt::format("batches without a time {}\n", counts.without_time));
    Print(fmt::format("held {} blocks, digest {}\n", checker_.held().size(),
                      ShortDigest(checker_.held().digest().entries())));
    if (against_) {
      const AgainstEngine::Counts& against = against_->counts();
      Print(fmt::format("engine agreed {} times, disagreed {}, missed {}, unanswered {}\n", against.agreed,
                        against.disagreed, against.missed, against.unanswered));
    }
    for (const std::string& address : never_connected_) {
      Print(fmt::format("never connected: no publisher at {}\n", address));
    }
    if (!output_.check) return;
    Print(fmt::format("violations {}\n", counts.violations));
    if (verdict_is_incomplete) Print(fmt::format("incomplete: {}\n", WhyIncomplete()));
    if (!cause.empty()) Print(fmt::format("cause: {}\n", cause));
    Print(fmt::format("verdict: {}\n", verdict));
  }
}

}  // namespace kvwire::engine
