// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/replay_service.h"

#include <algorithm>
#include <span>
#include <utility>

namespace kvwire {

namespace {

// The number asked for, or nothing if the message is not a request: identity, empty, start. A DEALER that leaves out
// the empty frame is understood too.
std::optional<SequenceNumber> ParseRequest(const InFrames& frames) {
  if (frames.size() == 2) return DecodeReplayStart(frames[1]);
  if (frames.size() == 3 && frames[1].empty()) return DecodeReplayStart(frames[2]);
  return std::nullopt;
}

std::span<const std::uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

}  // namespace

ReplayService::ReplayService(std::string topic, ReplayLayout layout, FrameLink* link, const ReplayBuffer* buffer)
    : topic_(std::move(topic)), layout_(layout), link_(link), buffer_(buffer) {}

std::size_t ReplayService::DoWork(MonotonicNanos now) {
  const std::size_t read = ReadRequests(now);
  return read + SendSlice(now);
}

std::size_t ReplayService::ReadRequests(MonotonicNanos now) {
  std::size_t read = 0;
  while (read < kRequestsPerCall) {
    std::optional<InFrames> frames = link_->TryReceive();
    if (!frames) break;
    ++read;
    if (!frames->empty()) Accept(std::move(*frames), now);
  }
  return read;
}

void ReplayService::Accept(InFrames frames, MonotonicNanos now) {
  std::vector<std::uint8_t> identity = std::move(frames[0]);
  const std::optional<SequenceNumber> start = ParseRequest(frames);
  (start ? requests_ : malformed_).Add(1);
  const auto known =
      std::find_if(clients_.begin(), clients_.end(), [&](const Client& client) { return client.identity == identity; });
  if (known == clients_.end()) {
    Admit(Client{std::move(identity), start.value_or(0), start ? buffer_->newest() : std::nullopt, now});
  } else if (start) {
    // Asking again is no progress: a client that asks without reading must not stay for ever.
    known->next = *start;
    known->last = buffer_->newest();
  }
}

void ReplayService::Admit(Client client) {
  if (clients_.size() < kMaxClients) {
    clients_.push_back(std::move(client));
    return;
  }
  dropped_.Add(1);
  SendEnd(client.identity);
}

std::size_t ReplayService::SendSlice(MonotonicNanos now) {
  if (clients_.empty()) return 0;
  Budget budget;
  std::size_t finished = 0;
  turn_ %= clients_.size();
  // A client that cannot take more leaves the rest of the slice to the next one.
  std::size_t left = clients_.size();
  for (std::size_t i = turn_; left > 0 && budget.messages > 0 && budget.bytes > 0; --left) {
    if (i >= clients_.size()) i = 0;
    const Progress progress = Serve(&clients_[i], &budget, now);
    if (progress == Progress::kTurnOver || progress == Progress::kBlocked) {
      ++i;
      continue;
    }
    if (progress == Progress::kGone) dropped_.Add(1);
    ++finished;
    clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(i));
    if (i < turn_) --turn_;
    if (clients_.empty()) break;
  }
  ++turn_;
  return finished + (kSliceMessages - budget.messages);
}

ReplayService::Progress ReplayService::Serve(Client* client, Budget* budget, MonotonicNanos now) {
  while (budget->messages > 0 && budget->bytes > 0) {
    const ReplayBuffer::Entry* entry = client->last ? buffer_->Find(client->next) : nullptr;
    if (entry != nullptr && entry->number > *client->last) entry = nullptr;
    const SendResult result = entry != nullptr ? SendBatch(*client, *entry) : SendEnd(client->identity);
    if (result == SendResult::kWouldBlock) {
      return now - client->last_progress > kProgressDeadline ? Progress::kGone : Progress::kBlocked;
    }
    if (result != SendResult::kSent) return Progress::kGone;
    client->last_progress = now;
    --budget->messages;
    if (entry == nullptr) return Progress::kDone;
    messages_.Add(1);
    budget->bytes -= std::min(budget->bytes, entry->payload->size());
    client->next = entry->number + 1;
  }
  return Progress::kTurnOver;
}

SendResult ReplayService::SendBatch(const Client& client, const ReplayBuffer::Entry& entry) {
  const SequenceFrame number = EncodeSequence(entry.number);
  const OutFrame frames[] = {OutFrame::Copy(client.identity), OutFrame{}, OutFrame::Copy(AsBytes(topic_)),
                             OutFrame::Copy(number), OutFrame::Share(entry.payload)};
  if (layout_ == ReplayLayout::kTopic) return link_->TrySend(frames);
  const OutFrame legacy[] = {frames[0], frames[1], frames[3], frames[4]};
  return link_->TrySend(legacy);
}

SendResult ReplayService::SendEnd(const std::vector<std::uint8_t>& identity) {
  const SequenceFrame number = EncodeSequence(kEndOfReplay);
  // With a topic frame it is empty: consumers know the end mark by its number and its empty payload.
  const OutFrame frames[] = {OutFrame::Copy(identity), OutFrame{}, OutFrame{}, OutFrame::Copy(number), OutFrame{}};
  if (layout_ == ReplayLayout::kTopic) return link_->TrySend(frames);
  const OutFrame legacy[] = {frames[0], frames[1], frames[3], frames[4]};
  return link_->TrySend(legacy);
}

}  // namespace kvwire
