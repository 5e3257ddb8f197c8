// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/stream_checker.h"

#include <fmt/format.h>

#include "kv_events/escape_text.h"

namespace kvwire {

namespace {

// Of groups other than full attention blocks may be skipped: never announced, but somebody's parent (docs/protocol.md,
// "Groups"); and some engines send their tokens.
bool MaySkipBlocks(const BlockStored& stored) {
  return stored.kv_cache_spec_kind && *stored.kv_cache_spec_kind != "full_attention";
}

std::string DescribeGap(const StreamGap& gap) {
  const std::string_view reason = ToString(gap.reason);
  return gap.from == gap.to ? fmt::format("message {} is missing ({})", gap.from, reason)
                            : fmt::format("messages {} to {} are missing ({})", gap.from, gap.to, reason);
}

}  // namespace

std::string_view ToString(CheckRule rule) noexcept {
  switch (rule) {
    case CheckRule::kSequence:
      return "sequence";
    case CheckRule::kReadable:
      return "readable";
    case CheckRule::kTokenCount:
      return "token-count";
    case CheckRule::kKnownParent:
      return "known-parent";
    case CheckRule::kKnownRemoval:
      return "known-removal";
    case CheckRule::kClearEmpties:
      return "clear-empties";
    case CheckRule::kWholeRemoval:
      return "whole-removal";
    case CheckRule::kAgreement:
      return "agreement";
  }
  return "unknown";
}

std::string_view ToString(CheckVerdict verdict) noexcept {
  switch (verdict) {
    case CheckVerdict::kClean:
      return "clean";
    case CheckVerdict::kViolated:
      return "violated";
    case CheckVerdict::kIncomplete:
      return "incomplete";
    case CheckVerdict::kSilent:
      return "silent";
  }
  return "unknown";
}

std::string Violation::ToString() const {
  std::string text = fmt::format("violated: {}: message {}", kvwire::ToString(rule), sequence);
  if (event) text += fmt::format(", event {}", *event);
  text += fmt::format(": {}\n", what);
  if (!event_text.empty()) text += fmt::format("  event: {}\n", event_text);
  if (!block.empty()) {
    text += fmt::format("  block {}, last events:\n", block.ToHex());
    for (const std::string& line : history) text += fmt::format("    {}\n", line);
  }
  text += hex;
  return text;
}

StreamChecker::StreamChecker(const Options& options, Report report) : options_(options), report_(std::move(report)) {}

void StreamChecker::OnBatch(const StreamMessage& message, const DecodedBatch& batch) {
  ++counts_.batches;
  last_ts_ = batch.batch.ts;
  if (batch.without_time) ++counts_.without_time;
  last_rank_ = batch.batch.data_parallel_rank;
  if (options_.rank && last_rank_ && *last_rank_ != *options_.rank) ++counts_.other_ranks;
  Expect(message.sequence);
  leaving_.clear();
  auto rejected = batch.rejected.begin();
  std::size_t place = 0;
  const auto report_rejected = [&] {
    for (; rejected != batch.rejected.end() && rejected->index == place; ++rejected, ++place) {
      Violate({&message, place, nullptr}, CheckRule::kReadable, rejected->error.message, 0, BlockHash());
      baseline_ = false;  // what it said is unknown
    }
  };
  for (std::size_t i = 0; i < batch.batch.size(); ++i, ++place) {
    report_rejected();
    const KVEventBatch::Event event = batch.batch.at(i);
    const Context context{&message, place, &event};
    ++counts_.events;
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      ++counts_.stored_events;
      CheckStored(context, *stored);
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      ++counts_.removed_events;
      CheckRemoved(context, *removed);
    } else {
      CheckCleared(context);
    }
  }
  report_rejected();
  CheckWholeRemovals(message);
  if (building_) building_->Apply(batch.batch);
}

void StreamChecker::OnUndecodable(const StreamMessage& message, const DecodeError& error) {
  ++counts_.undecodable;
  Expect(message.sequence);
  Violation violation;
  violation.rule = CheckRule::kReadable;
  violation.sequence = message.sequence;
  violation.what = error.message;
  violation.hex = HexDump(message.payload, {error.offset, error.offset + 1});
  Violate(violation);
  NoteLoss(message.sequence, fmt::format("message {} could not be read", message.sequence));
  baseline_ = false;
}

void StreamChecker::NoteLoss(SequenceNumber from, std::string cause) {
  if (!lossy()) loss_ = Loss{from, std::move(cause), std::nullopt};
  parents_lost_ = true;
}

void StreamChecker::OnRecovery(SequenceNumber, SequenceNumber) {}

void StreamChecker::OnHealed(SequenceNumber, SequenceNumber) { ++counts_.healed; }

void StreamChecker::OnGap(const StreamGap& gap) {
  parents_lost_ = true;
  if (!gap.joined_late) {
    ++counts_.gaps;
    counts_.missing += gap.to - gap.from + 1;
    if (!first_gap_) first_gap_ = gap;
    NoteLoss(gap.from, DescribeGap(gap));
  }
  baseline_ = false;
  started_ = true;
  expected_ = gap.to + 1;
}

void StreamChecker::OnRestart(SequenceNumber, std::optional<SequenceNumber>) {
  ++counts_.restarts;
  BeginLife();
}

void StreamChecker::OnContinuity(Continuity continuity) {
  switch (continuity) {
    case Continuity::kInterrupted:
      ++counts_.interruptions;
      interrupted_ = true;
      break;
    case Continuity::kConfirmed:
      interrupted_ = unconfirmed_ = false;
      break;
    case Continuity::kUnconfirmed:
      // Before the first message it only means that there is no baseline, and that message tells by its number.
      unconfirmed_ = counts_.batches + counts_.undecodable + counts_.snapshots > 0;
      break;
    case Continuity::kForgotten:
      BeginLife();
      break;
    case Continuity::kSeveral:
      several_ = true;
      break;
  }
}

void StreamChecker::BeginLife() {
  held_.Clear();
  building_.reset();
  history_.Clear();
  last_clear_.reset();
  loss_.reset();
  parents_lost_ = false;
  started_ = false;
  baseline_ = true;
  interrupted_ = unconfirmed_ = false;
}

void StreamChecker::OnContradiction(SequenceNumber number, Contradiction contradiction) {
  Violation violation;
  violation.rule = CheckRule::kSequence;
  violation.sequence = number;
  violation.what = fmt::format("message {} {}", number, ToString(contradiction));
  Violate(violation);
}

void StreamChecker::OnMalformed(std::size_t frame_count) {
  Violation violation;
  violation.rule = CheckRule::kReadable;
  violation.sequence = expected_;
  violation.what = fmt::format("a message of {} frames that is not topic, sequence, payload", frame_count);
  Violate(violation);
}

void StreamChecker::OnOtherTopic(SequenceNumber number) { Expect(number); }

void StreamChecker::OnSnapshotBegin(SequenceNumber first) {
  building_.emplace();
  started_ = true;
  expected_ = first;
}

void StreamChecker::OnSnapshotChunk(SequenceNumber number, const DecodedBatch& chunk) {
  building_->ApplyChunk(chunk.batch);
  for (std::size_t i = 0; i < chunk.batch.size(); ++i) {
    const KVEventBatch::Event event = chunk.batch.at(i);
    const auto* stored = std::get_if<BlockStored>(&event);
    if (stored == nullptr) continue;
    const BlockMoment moment(number, i, BlockMoment::Kind::kStored);
    for (const BlockHash& hash : stored->block_hashes) {
      history_.Add(stored->group_idx.value_or(0), hash.Low64(), moment);
    }
  }
}

void StreamChecker::OnSnapshotEnd(SequenceNumber next, const std::optional<DigestEntries>&) {
  ++counts_.snapshots;
  held_ = *std::move(building_);
  building_.reset();
  baseline_ = true;
  expected_ = next;
  // A parent may have come and gone before.
  parents_lost_ = true;
  if (lossy()) loss_->until = next;
}

void StreamChecker::OnDigestDiffers(SequenceNumber next, const DigestEntries& theirs) {
  if (!synchronised()) return;
  OnDisagreement(next > 0 ? next - 1 : 0, fmt::format("the stream says {}, the publisher's digest is {}",
                                                      ShortDigest(held_.digest().entries()), ShortDigest(theirs)));
  baseline_ = false;
}

void StreamChecker::OnDisagreement(SequenceNumber sequence, std::string what) {
  Violation violation;
  violation.rule = CheckRule::kAgreement;
  violation.sequence = sequence;
  violation.what = std::move(what);
  if (loss_ && sequence >= loss_->from && (!loss_->until || sequence < *loss_->until)) {
    violation.what += "; cause: " + loss_->cause;
    if (explained_++ == 0) explanation_ = loss_->cause;
  }
  Violate(violation);
}

CheckVerdict StreamChecker::Verdict() const {
  if (counts_.violations > 0) return CheckVerdict::kViolated;
  if (counts_.batches + counts_.snapshots == 0) return CheckVerdict::kSilent;
  return WhyIncomplete().empty() ? CheckVerdict::kClean : CheckVerdict::kIncomplete;
}

std::string StreamChecker::WhyIncomplete() const {
  if (several_) return std::string(kvwire::ToString(Continuity::kSeveral));
  if (first_gap_) {
    std::string why = DescribeGap(*first_gap_);
    const std::uint64_t more = counts_.missing - (first_gap_->to - first_gap_->from + 1);
    if (more > 0) why += fmt::format(", and {} more behind it", more);
    if (counts_.unjudged > 0) {
      why += fmt::format("; parents and removals not judged because of it: {}", counts_.unjudged);
    }
    return why;
  }
  if (interrupted_) {
    return fmt::format("{}{}; whether it published more, or began anew, is unknown",
                       kvwire::ToString(Continuity::kInterrupted),
                       started_ ? fmt::format(" after message {}", expected_ - 1) : "");
  }
  if (!baseline_) return "what the publisher held before is unknown";
  if (unconfirmed_) return fmt::format("{}: message {}", kvwire::ToString(Continuity::kUnconfirmed), expected_ - 1);
  return {};
}

std::string StreamChecker::WhyViolated() const {
  return counts_.violations == explained_ ? explanation_ : std::string();
}

void StreamChecker::Expect(SequenceNumber number) {
  if (started_ && number != expected_) {
    Violation violation;
    violation.rule = CheckRule::kSequence;
    violation.sequence = number;
    violation.what = fmt::format("number {} follows, {} was expected", number, expected_);
    Violate(violation);
  }
  started_ = true;
  expected_ = number + 1;
}

void StreamChecker::CheckStored(const Context& context, const BlockStored& stored) {
  const std::uint32_t group = stored.group_idx.value_or(0);
  const std::size_t blocks = stored.block_hashes.size();
  const std::uint64_t tokens = std::uint64_t{stored.block_size} * blocks;
  const bool may_skip = MaySkipBlocks(stored);
  const HeldBlocks::ShelfId shelf = held_.ShelfOf(stored.group_idx, stored.medium);
  const std::size_t ids = stored.token_ids.size();
  if (may_skip && ids > tokens && stored.block_size > 0 && ids % stored.block_size == 0) {
    ++counts_.masked_events;
  } else if (ids > 0 && ids != tokens) {
    Violate(context, CheckRule::kTokenCount,
            fmt::format("{} tokens for {} blocks of {}", ids, blocks, stored.block_size), group,
            blocks > 0 ? stored.block_hashes[0] : BlockHash());
  }
  if (stored.parent_block_hash && !history_.WasAnnounced(group, stored.parent_block_hash->Low64())) {
    // A lower tier takes what the device gives up, children first.
    if (may_skip || held_.shelf(shelf).medium != kMediumGpu) {
      ++counts_.skipped_parents;
    } else if (parents_lost_) {
      ++counts_.unjudged;
    } else if (synchronised()) {
      Violate(context, CheckRule::kKnownParent,
              fmt::format("parent {} was never announced", stored.parent_block_hash->ToHex()), group,
              *stored.parent_block_hash);
    }
  }
  const BlockMoment moment(context.message->sequence, context.event, BlockMoment::Kind::kStored);
  for (const BlockHash& hash : stored.block_hashes) {
    held_.Add(shelf, hash.Low64());
    history_.Add(group, hash.Low64(), moment);
  }
  counts_.blocks_stored += blocks;
}

void StreamChecker::CheckRemoved(const Context& context, const BlockRemoved& removed) {
  const std::uint32_t group = removed.group_idx.value_or(0);
  const HeldBlocks::ShelfId shelf = held_.ShelfOf(removed.group_idx, removed.medium);
  const BlockMoment moment(context.message->sequence, context.event, BlockMoment::Kind::kRemoved);
  for (const BlockHash& hash : removed.block_hashes) {
    const std::uint64_t low64 = hash.Low64();
    if (!held_.Remove(shelf, low64)) {
      if (synchronised()) {
        const BlockMoment latest = history_.LastThree(group, low64)[0];
        const bool cleared = last_clear_ && latest.kind() == BlockMoment::Kind::kStored && latest.Before(*last_clear_);
        Violate(context, cleared ? CheckRule::kClearEmpties : CheckRule::kKnownRemoval,
                fmt::format("block {} is removed and not held in group {}, {}", hash.ToHex(), group,
                            EscapeField(held_.shelf(shelf).medium)),
                group, hash);
      } else if (lossy()) {
        ++counts_.unjudged;
      }
    } else if (options_.removals == Removals::kExact) {
      if (held_.Count(shelf, low64) > 0) {
        leaving_[{shelf, low64}] = context.event;
      } else {
        leaving_.erase({shelf, low64});
      }
    }
    history_.Add(group, low64, moment);
  }
  counts_.blocks_removed += removed.block_hashes.size();
}

void StreamChecker::CheckCleared(const Context& context) {
  ++counts_.cleared;
  held_.Clear();
  leaving_.clear();
  baseline_ = true;
  if (lossy()) loss_->until = context.message->sequence;
  last_clear_ = BlockMoment(context.message->sequence, context.event, BlockMoment::Kind::kNone);
}

void StreamChecker::CheckWholeRemovals(const StreamMessage& message) {
  if (lossy()) {
    counts_.unjudged += leaving_.size();
    return;
  }
  for (const auto& [block, event] : leaving_) {
    const HeldBlocks::Shelf& shelf = held_.shelf(block.first);
    Violate({&message, event, nullptr}, CheckRule::kWholeRemoval,
            fmt::format("block {:016x} was announced {} times more than it was removed in group {}, {}", block.second,
                        held_.Count(block.first, block.second), shelf.group, EscapeField(shelf.medium)),
            shelf.group, BlockHash::FromUint64(block.second));
  }
}

void StreamChecker::Violate(const Context& context, CheckRule rule, std::string what, std::uint32_t group,
                            const BlockHash& block) {
  Violation violation;
  violation.rule = rule;
  violation.sequence = context.message->sequence;
  violation.event = context.event;
  violation.what = std::move(what);
  // A stream that is all wrong must not cost a dump per event.
  if (counts_.violations < options_.max_reports) {
    if (context.value != nullptr) violation.event_text = DescribeEvent(*context.value);
    violation.block = block;
    if (!block.empty()) violation.history = History(group, block.Low64());
    const std::vector<ByteRange> events = FindEvents(context.message->payload);
    const ByteRange marked = context.event < events.size() ? events[context.event] : ByteRange();
    violation.hex = HexDump(context.message->payload, marked);
  }
  Violate(violation);
}

void StreamChecker::Violate(const Violation& violation) {
  ++counts_.violations_by_rule[static_cast<std::size_t>(violation.rule)];
  if (counts_.violations++ < options_.max_reports && report_) report_(violation);
}

std::vector<std::string> StreamChecker::History(std::uint32_t group, std::uint64_t low64) const {
  std::vector<std::string> lines;
  for (const BlockMoment& moment : history_.LastThree(group, low64)) {
    if (moment.kind() == BlockMoment::Kind::kNone) break;
    const bool cleared = last_clear_ && moment.Before(*last_clear_);
    lines.push_back(fmt::format("{} in message {}, event {}{}",
                                moment.kind() == BlockMoment::Kind::kStored ? "stored" : "removed", moment.sequence(),
                                moment.event(), cleared ? ", before the last AllBlocksCleared" : ""));
  }
  if (lines.empty()) lines.push_back("none");
  return lines;
}

}  // namespace kvwire
