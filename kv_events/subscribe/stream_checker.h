// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv_events/config.h"
#include "kv_events/subscribe/block_history.h"
#include "kv_events/subscribe/held_blocks.h"
#include "kv_events/subscribe/payload_view.h"
#include "kv_events/subscribe/stream_sink.h"

namespace kvwire {

// What a healthy stream keeps to.
enum class CheckRule : std::uint8_t {
  kSequence,      // numbers follow each other
  kReadable,      // three frames, a batch, and events that can be read
  kTokenCount,    // block_size tokens a block, or none at all; of groups that skip blocks also of skipped ones
  kKnownParent,   // a parent was announced earlier, even if it was removed since; not of groups that skip blocks
  kKnownRemoval,  // what is removed is held
  kClearEmpties,  // what was stored before AllBlocksCleared is not removed after it
  kWholeRemoval,  // removals: exact only: a block's removals come all in one batch
  kAgreement,     // what the stream says is what its engine says of itself; judged by whoever can ask the engine
};
inline constexpr std::size_t kNumCheckRules = 8;

std::string_view ToString(CheckRule rule) noexcept;

// What a check ends with. The values are exit codes.
enum class CheckVerdict : std::uint8_t {
  kClean = 0,
  kViolated = 1,    // a rule was broken
  kIncomplete = 2,  // joined late without a baseline, or a gap was not closed: nothing seen was wrong, not all was seen
  kSilent = 3,      // no batch was received: never a pass
};
inline constexpr std::size_t kNumCheckVerdicts = 4;

std::string_view ToString(CheckVerdict verdict) noexcept;

// One breach, explained.
struct Violation {
  CheckRule rule = CheckRule::kSequence;
  SequenceNumber sequence = 0;
  std::optional<std::size_t> event;  // place among the payload's events
  std::string what;                  // what is wrong, with the numbers
  std::string event_text;            // DescribeEvent
  BlockHash block;                   // empty when no block is concerned
  std::vector<std::string> history;  // that block's last three events before this one, the latest first
  std::string hex;                   // HexDump with the event marked

  // Several lines, the last one ended.
  std::string ToString() const;
};

struct CheckCounts {
  std::uint64_t batches = 0;
  std::uint64_t events = 0;
  std::uint64_t stored_events = 0;
  std::uint64_t removed_events = 0;
  std::uint64_t blocks_stored = 0;
  std::uint64_t blocks_removed = 0;
  std::uint64_t cleared = 0;
  std::uint64_t undecodable = 0;
  std::uint64_t violations = 0;
  std::array<std::uint64_t, kNumCheckRules> violations_by_rule{};
  std::uint64_t without_time = 0;     // batches
  std::uint64_t other_ranks = 0;      // batches of another rank than Options::rank
  std::uint64_t unjudged = 0;         // parents and removals that are wrong unless a loss explains them
  std::uint64_t skipped_parents = 0;  // never announced, of groups that skip blocks and of lower tiers
  std::uint64_t masked_events = 0;    // of groups that skip blocks, with the tokens of skipped blocks
  std::uint64_t gaps = 0;             // not closed, late joins not included
  std::uint64_t missing = 0;          // numbers in them
  std::uint64_t healed = 0;
  std::uint64_t restarts = 0;
  std::uint64_t interruptions = 0;
  std::uint64_t snapshots = 0;
};

class StreamChecker;

// A sink that holds its stream to the rules, whatever else it does.
class CheckedSink : public StreamSink {
 public:
  virtual const StreamChecker& checker() const noexcept = 0;
};

// Holds one stream to the rules and keeps the blocks it holds. While the stream is not known from its beginning (a late
// join or a gap, until AllBlocksCleared or a restart) the rules about parents and removals cannot be judged and are
// not; a parent cannot until a restart, for it may have come and gone unseen, and a walk behind AllBlocksCleared
// announces its children. A snapshot is a baseline as AllBlocksCleared is, but for parents. A message that cannot be
// read is a violation, and as good as a gap for what follows. A gap inside the stream makes the verdict incomplete for
// good, and so do several publishers in one stream; a late join does until AllBlocksCleared, a snapshot or a restart; a
// lost connection or an end that the publisher does not confirm does until a restart or a confirmation.
//
// Threads: one thread at a time.
// Bounds: HeldBlocks and BlockHistory: under 1 GiB for 6 million different blocks. At most max_reports violations are
// explained; all are counted.
class StreamChecker final : public CheckedSink {
 public:
  struct Options {
    Removals removals = Removals::kPerCopy;  // kExact adds kWholeRemoval
    std::size_t max_reports = 20;
    std::optional<std::int64_t> rank;  // that batches should name; others are counted, and are no violation
  };
  using Report = std::function<void(const Violation&)>;

  StreamChecker(const Options& options, Report report);

  const StreamChecker& checker() const noexcept override { return *this; }

  void OnBatch(const StreamMessage& message, const DecodedBatch& batch) override;
  void OnUndecodable(const StreamMessage& message, const DecodeError& error) override;
  void OnRecovery(SequenceNumber from, SequenceNumber to) override;
  void OnHealed(SequenceNumber from, SequenceNumber to) override;
  void OnGap(const StreamGap& gap) override;
  void OnRestart(SequenceNumber last, std::optional<SequenceNumber> first_seen) override;
  void OnContinuity(Continuity continuity) override;
  void OnContradiction(SequenceNumber number, Contradiction contradiction) override;
  void OnMalformed(std::size_t frame_count) override;
  void OnOtherTopic(SequenceNumber number) override;
  void OnSnapshotBegin(SequenceNumber first) override;
  void OnSnapshotChunk(SequenceNumber number, const DecodedBatch& chunk) override;
  void OnSnapshotEnd(SequenceNumber next, const std::optional<DigestEntries>& digest) override;
  void OnSnapshotAbandoned() override { building_.reset(); }
  std::optional<DigestEntries> HeldDigest() const override { return held_.digest().entries(); }
  // A violation, unless the checker itself knows that it does not hold all.
  void OnDigestDiffers(SequenceNumber next, const DigestEntries& theirs) override;

  // After this message the engine says something else of itself. Where a gap may be the cause it is named.
  void OnDisagreement(SequenceNumber sequence, std::string what);

  CheckVerdict Verdict() const;
  // Why the verdict is, or would be, incomplete: one line; empty if nothing is.
  std::string WhyIncomplete() const;
  // The gap that explains all violations, which are then of the rule kAgreement: one line; empty if none does.
  std::string WhyViolated() const;

  const CheckCounts& counts() const noexcept { return counts_; }
  const HeldBlocks& held() const noexcept { return held_; }
  // Of the latest batch: its time, 0 before there is one, and its rank.
  double last_ts() const noexcept { return last_ts_; }
  const std::optional<std::int64_t>& last_rank() const noexcept { return last_rank_; }
  // Whether everything since the publisher's first message, a restart or AllBlocksCleared is known.
  bool synchronised() const noexcept { return baseline_ && !interrupted_; }
  // Whether what is held is the publisher's state, but for a loss that is known. A late join before its baseline is
  // neither.
  bool comparable() const noexcept { return baseline_ || lossy(); }

 private:
  // The event being checked, for reports.
  struct Context {
    const StreamMessage* message = nullptr;
    std::size_t event = 0;  // place in the payload
    const KVEventBatch::Event* value = nullptr;
  };
  // Numbers at which what is held is unknown, for a gap that was not closed or a message that could not be read.
  struct Loss {
    SequenceNumber from = 0;              // where the first one begins
    std::string cause;                    // it, in words
    std::optional<SequenceNumber> until;  // that of the AllBlocksCleared behind it
  };

  void BeginLife();
  void NoteLoss(SequenceNumber from, std::string cause);
  bool lossy() const noexcept { return loss_ && !loss_->until; }
  void Expect(SequenceNumber number);
  void CheckStored(const Context& context, const BlockStored& stored);
  void CheckRemoved(const Context& context, const BlockRemoved& removed);
  void CheckCleared(const Context& context);
  void CheckWholeRemovals(const StreamMessage& message);
  void Violate(const Context& context, CheckRule rule, std::string what, std::uint32_t group, const BlockHash& block);
  void Violate(const Violation& violation);
  std::vector<std::string> History(std::uint32_t group, std::uint64_t low64) const;

  const Options options_;
  const Report report_;
  HeldBlocks held_;
  std::optional<HeldBlocks> building_;  // what a snapshot brings
  BlockHistory history_;
  CheckCounts counts_;
  double last_ts_ = 0;
  std::optional<std::int64_t> last_rank_;
  SequenceNumber expected_ = 0;
  bool started_ = false;
  bool baseline_ = true;      // by the numbers
  bool interrupted_ = false;  // what follows may be of another life
  bool unconfirmed_ = false;  // something may follow what was received
  bool several_ = false;
  std::optional<StreamGap> first_gap_;
  std::optional<Loss> loss_;     // of this life, the latest
  bool parents_lost_ = false;    // an announcement of this life may have been missed
  std::uint64_t explained_ = 0;  // violations that a gap explains
  std::string explanation_;      // of the first one
  std::optional<BlockMoment> last_clear_;
  // Blocks of the current batch of which some announcements were taken back, not all; only under Removals::kExact.
  std::map<std::pair<HeldBlocks::ShelfId, std::uint64_t>, std::size_t> leaving_;
};

}  // namespace kvwire
