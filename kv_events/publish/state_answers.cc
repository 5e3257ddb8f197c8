// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/state_answers.h"

#include <utility>

namespace kvwire {

StateAnswers::StateAnswers(const Options& options, const ReplayBuffer* buffer, StateRequests* requests)
    : options_(options), buffer_(buffer), walks_(options.walks, requests), next_(options.hello.first) {}

// Batches that leave the state as it was share one.
SharedBytes StateAnswers::DigestOf(const KVEventBatch& batch) {
  if (!batch.has_digest) return nullptr;
  DigestEntries entries = batch.digest.entries();
  if (last_encoded_ && entries == last_entries_) return last_encoded_;
  std::vector<std::uint8_t> bytes;
  EncodeDigest(entries, &bytes);
  last_encoded_ = std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes));
  last_entries_ = std::move(entries);
  return last_encoded_;
}

void StateAnswers::NoteBatch(SequenceNumber number, KVEventBatch&& batch, const SharedBytes& digest) {
  if (number != next_) walks_.NoteLoss();
  next_ = number + 1;
  digest_ = digest;
  walks_.NoteBatch(std::move(batch));
}

void StateAnswers::NoteHeartbeat(SequenceNumber number) {
  if (number != next_) {
    walks_.NoteLoss();
    digest_ = nullptr;
  }
  next_ = number + 1;
}

StateAnswers::Message StateAnswers::AnswerHello() const {
  Hello hello = options_.hello;
  hello.next = next_;
  hello.oldest = buffer_->oldest();
  hello.snapshots = options_.snapshot != SnapshotForm::kOff && !walks_.unanswered();
  if (digest_) hello.digest = last_entries_;
  std::vector<std::uint8_t> bytes;
  EncodeHello(hello, &bytes);
  return {kHelloName, next_, std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes))};
}

std::optional<StateAnswers::Message> StateAnswers::AnswerDigest(SequenceNumber number) const {
  SharedBytes digest = number + 1 == next_ ? digest_ : nullptr;
  if (!digest) {
    const std::optional<ReplayBuffer::Entry> entry = buffer_->Find(number);
    if (entry && entry->number == number) digest = entry->digest;
  }
  if (!digest) return std::nullopt;
  return Message{kDigestName, number, std::move(digest)};
}

std::optional<SnapshotWalks::TicketId> StateAnswers::AskSnapshot(SnapshotShape shape, MonotonicNanos now) {
  if (options_.snapshot == SnapshotForm::kOff) return std::nullopt;
  return walks_.Join(shape, now);
}

}  // namespace kvwire
