// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "kv_events/config.h"
#include "kv_events/subscribe/held_blocks.h"
#include "kv_events/subscribe/stream_sink.h"

namespace kvwire {

struct MirrorBlock {
  std::uint32_t group = 0;
  std::string_view medium;  // canonical
  std::uint64_t low64 = 0;  // of its hash

  friend bool operator==(const MirrorBlock&, const MirrorBlock&) = default;
};

// What one message changed, net: a block that came and went in it is in neither list.
struct MirrorChanges {
  SequenceNumber next = 0;  // what is held is the state before this batch
  bool replaced = false;    // all that was held is void; `added` is everything that is held now
  std::vector<MirrorBlock> added;
  std::vector<MirrorBlock> removed;
};

// The blocks a stream says are resident, per (group, medium), by the low 64 bits of their hash, and how they change.
// How a block goes is the source's declared rule (hello, "removals"): kExact takes it away with the first of its
// removals, which all come in one batch; kPerCopy when as many removals as announcements came.
//
// What a snapshot brings is built beside what is held and replaces it at its end.
//
// Threads: one thread at a time. `report` is called during the calls of a StreamSink; its argument's views are valid
//   only during that call.
// Bounds: HeldBlocks, twice while a snapshot is under way.
class Mirror final : public StreamSink {
 public:
  using Report = std::function<void(const MirrorChanges&)>;
  using StateReport = std::function<void(const StreamStatus&)>;

  // Either may be null.
  explicit Mirror(Removals removals, Report report = nullptr, StateReport state_report = nullptr);

  bool Holds(std::uint32_t group, std::string_view medium, std::uint64_t low64) const;
  std::size_t size() const noexcept { return held_.size(); }
  const StateDigest& digest() const noexcept { return held_.digest(); }
  // What is held is the state before this batch.
  SequenceNumber next() const noexcept { return next_; }

  // Everything that is held, in no order.
  void Copy(const std::function<void(const MirrorBlock&)>& visit) const;

  void OnBatch(const StreamMessage& message, const DecodedBatch& batch) override;
  void OnUndecodable(const StreamMessage& message, const DecodeError& error) override;
  void OnRecovery(SequenceNumber /*from*/, SequenceNumber /*to*/) override {}
  void OnHealed(SequenceNumber /*from*/, SequenceNumber /*to*/) override {}
  void OnGap(const StreamGap& gap) override { next_ = gap.to + 1; }
  void OnRestart(SequenceNumber last, std::optional<SequenceNumber> first_seen) override;
  void OnContinuity(Continuity continuity) override;
  void OnMalformed(std::size_t /*frame_count*/) override {}
  void OnOtherTopic(SequenceNumber number) override { next_ = number + 1; }
  void OnSnapshotBegin(SequenceNumber first) override;
  void OnSnapshotChunk(SequenceNumber number, const DecodedBatch& chunk) override;
  void OnSnapshotEnd(SequenceNumber next, const std::optional<DigestEntries>& digest) override;
  void OnSnapshotAbandoned() override { building_.reset(); }
  std::optional<DigestEntries> HeldDigest() const override { return held_.digest().entries(); }
  void OnState(const StreamStatus& status) override;

 private:
  // A block that the running batch named, and whether it was held before.
  struct Touched {
    HeldBlocks::ShelfId shelf = 0;
    std::uint64_t low64 = 0;
    bool was_held = false;
  };

  void Take(HeldBlocks* blocks, const BlockStored& stored, bool track);
  void Take(HeldBlocks* blocks, const BlockRemoved& removed, bool track);
  void Touch(const HeldBlocks& blocks, HeldBlocks::ShelfId shelf, std::uint64_t low64, bool track);
  MirrorBlock BlockOf(HeldBlocks::ShelfId shelf, std::uint64_t low64) const;
  void ReportChanges();
  void ReportReplaced();
  void BeginAgain();

  const Removals removals_;
  const Report report_;
  const StateReport state_report_;
  HeldBlocks held_;
  std::optional<HeldBlocks> building_;
  SequenceNumber next_ = 0;
  std::vector<Touched> touched_;
};

}  // namespace kvwire
