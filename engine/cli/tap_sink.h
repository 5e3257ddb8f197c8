// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cli/tap_against.h"
#include "engine/cli/tap_format.h"
#include "kv_events/config.h"
#include "kv_events/error.h"
#include "kv_events/subscribe/event_stream.h"
#include "kv_events/subscribe/recording.h"
#include "kv_events/subscribe/stream_checker.h"

namespace kvwire::engine {

struct TapOutput {
  std::string stream;                // its name goes before each line; empty: it is the only one
  std::optional<std::int64_t> rank;  // that its batches should name
  bool json = false;
  bool check = false;                       // say what breaks the rules, end with the verdict
  bool quiet = false;                       // no events, only notices and the summary
  std::size_t max_events_shown = SIZE_MAX;  // in all; the batch in which they run out is shown in part
  Removals removals = Removals::kPerCopy;   // how the source removes
  std::string record;                       // file names; empty: not wanted
  std::string dump_digests;
  std::string dump_state;
};

// What `kvwire tap` does with a stream: prints it, checks it, records it, writes the digest of every batch.
// Threads: one thread. Errors: a file that cannot be opened ends Create, one that cannot be written, stdout included,
// ends Finish; until then printing goes on.
class TapSink final : public CheckedSink {
 public:
  static Result<std::unique_ptr<TapSink>> Create(const TapOutput& output);
  ~TapSink() override;

  void OnBatch(const StreamMessage& message, const DecodedBatch& batch) override;
  void OnUndecodable(const StreamMessage& message, const DecodeError& error) override;
  void OnRecovery(SequenceNumber from, SequenceNumber to) override;
  void OnHealed(SequenceNumber from, SequenceNumber to) override;
  void OnJoined(SequenceNumber from, SequenceNumber to) override;
  void OnGap(const StreamGap& gap) override;
  void OnRestart(SequenceNumber last, std::optional<SequenceNumber> first_seen) override;
  void OnContinuity(Continuity continuity) override;
  void OnContradiction(SequenceNumber number, Contradiction contradiction) override;
  void OnMalformed(std::size_t frame_count) override;
  void OnOtherTopic(SequenceNumber number) override;
  void OnTopicUnknown() override;
  void OnSnapshotBegin(SequenceNumber first) override;
  void OnSnapshotChunk(SequenceNumber number, const DecodedBatch& chunk) override;
  void OnSnapshotEnd(SequenceNumber next, const std::optional<DigestEntries>& digest) override;
  void OnSnapshotAbandoned() override;
  std::optional<DigestEntries> HeldDigest() const override { return checker_.HeldDigest(); }
  void OnDigestDiffers(SequenceNumber next, const DigestEntries& theirs) override;
  void OnState(const StreamStatus& status) override;

  // Prints "listening on ..." or "connecting to ...", or its JSON form. REQUIRES: mode is not kAuto.
  void Begins(const std::string& endpoint, const std::string& replay_endpoint, SocketMode mode);

  // An address that was never connected, for the summary.
  void NeverConnected(const std::string& address) { never_connected_.push_back(address); }

  // Writes the remaining files and prints the summary, its last line the verdict if that was asked for.
  Status Finish(const EventStreamStats& stats);

  // From now on what the stream says is also held against its engine; `client` asks it.
  void CompareWith(std::unique_ptr<TruthClient> client);
  // One look at the engine; and a last one, until `deadline` at most.
  void LookAtEngine(MonotonicNanos now);
  void FinishEngine() {
    if (against_) against_->Finish();
  }
  bool engine_finished() const noexcept { return !against_ || against_->finished(); }

  CheckVerdict Verdict() const;
  const StreamChecker& checker() const noexcept override { return checker_; }

 private:
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

  explicit TapSink(const TapOutput& output);
  void Print(std::string_view text);
  void PrintJson(const Json& value);
  void Notice(std::string_view kind, const std::string& text);
  void Show(const StreamMessage& message, const DecodedBatch& batch);
  void Record(const StreamMessage& message);
  Status DumpState();
  void PrintSummary(const EventStreamStats& stats);

  std::string WhyIncomplete() const;

  const TapOutput output_;
  StreamChecker checker_;
  std::unique_ptr<AgainstEngine> against_;
  std::unique_ptr<RecordingWriter> recorder_;
  File digests_;
  File state_;
  std::vector<std::string> never_connected_;
  Status failed_;  // the first failure to write
  std::size_t shown_ = 0;
  bool more_noted_ = false;
};

}  // namespace kvwire::engine
