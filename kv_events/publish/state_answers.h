// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "kv_events/batch.h"
#include "kv_events/config.h"
#include "kv_events/publish/replay_buffer.h"
#include "kv_events/publish/snapshot_walks.h"
#include "kv_events/transport/frame_link.h"
#include "kv_events/wire/extensions.h"

namespace kvwire {

// What a ROUTER can tell of the stream besides its batches: who publishes (hello), what the stream held after a batch
// (digest), and everything it holds (snapshot walks).
//
// Threads: one, the publishing thread. Ownership: borrows buffer and requests.
// Source: docs/protocol.md, "State".
class StateAnswers {
 public:
  struct Options {
    Hello hello;  // epoch, rank, first number, heartbeats and removals; the rest is filled in
    SnapshotForm snapshot = SnapshotForm::kKvwire;
    SnapshotWalks::Options walks;
  };

  // An answer of one message.
  struct Message {
    std::string_view name;
    SequenceNumber number = 0;
    SharedBytes payload;
  };

  StateAnswers(const Options& options, const ReplayBuffer* buffer, StateRequests* requests);

  // Of the state after the batch; null if its producer does not tell.
  SharedBytes DigestOf(const KVEventBatch& batch);
  // The batch of this number is next in the stream, whether it was sent or not. Takes what it needs of the batch.
  // `digest` is what DigestOf said.
  void NoteBatch(SequenceNumber number, KVEventBatch&& batch, const SharedBytes& digest);
  // A heartbeat is; what the stream holds is as before, if no number is missing.
  void NoteHeartbeat(SequenceNumber number);
  const SharedBytes& last_digest() const noexcept { return digest_; }
  // The number after the last one.
  SequenceNumber next() const noexcept { return next_; }

  Message AnswerHello() const;
  // Nothing when the state after `number` is not known.
  std::optional<Message> AnswerDigest(SequenceNumber number) const;
  // Nothing when snapshots are off.
  std::optional<SnapshotWalks::TicketId> AskSnapshot(SnapshotShape shape, MonotonicNanos now);

  SnapshotForm snapshot() const noexcept { return options_.snapshot; }
  SnapshotWalks& walks() noexcept { return walks_; }
  const SnapshotWalks& walks() const noexcept { return walks_; }

 private:
  const Options options_;
  const ReplayBuffer* const buffer_;
  SnapshotWalks walks_;
  SequenceNumber next_;
  SharedBytes digest_;        // after the last batch; null: not known
  SharedBytes last_encoded_;  // of last_entries_
  DigestEntries last_entries_;
};

}  // namespace kvwire
