// SPDX-License-Identifier: Apache-2.0
#include "kv_events/publish/replay_service.h"

#include <algorithm>
#include <span>
#include <utility>

namespace kvwire {

namespace {

std::span<const std::uint8_t> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// Others are answered by a message or two, at once.
bool NeedsPlace(const ReplayRequest& request) {
  return !request.extension || request.extension->kind == ExtensionKind::kSnapshot;
}

}  // namespace

ReplayService::ReplayService(std::string topic, ReplayLayout layout, FrameLink* link, const ReplayBuffer* buffer,
                             StateAnswers* answers)
    : topic_(std::move(topic)), layout_(layout), link_(link), buffer_(buffer), answers_(answers) {}

std::size_t ReplayService::DoWork(MonotonicNanos now) {
  AdmitWaiting(now);
  const std::size_t read = ReadRequests(now);
  const std::size_t walked = answers_ != nullptr ? answers_->walks().DoWork() : 0;
  const std::size_t sent = SendSlice(now) + GiveUpSlow(now);
  client_count_.Set(clients_.size());
  return read + walked + sent;
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
  const KnownNames names = answers_ != nullptr ? KnownNames::kExtensions : KnownNames::kNone;
  const std::optional<ReplayRequest> request = ParseReplayRequest(frames, names);
  std::vector<std::uint8_t> identity = std::move(frames[0]);
  const auto known =
      std::find_if(clients_.begin(), clients_.end(), [&](const Client& client) { return client.identity == identity; });
  Count(request);
  if (known == clients_.end()) {
    Admit(std::move(identity), request, now);
  } else if (request && !waiting_.empty() && NeedsPlace(*request)) {
    Remove(static_cast<std::size_t>(known - clients_.begin()));
    Wait(std::move(identity), *request);
  } else if (request) {
    // Asking again is no progress: a client that asks without reading must not stay for ever.
    Forget(known->answer);
    known->answer = AnswerTo(*request, now);
  }
}

void ReplayService::Count(const std::optional<ReplayRequest>& request) {
  const bool state = answers_ != nullptr && answers_->snapshot() == SnapshotForm::kXllm;
  if (!request) {
    malformed_.Add(1);
  } else if (!request->extension) {
    requests_.Add(1);
    if (state) snapshots_.Add(1);
  } else {
    switch (request->extension->kind) {
      case ExtensionKind::kHello:
        hellos_.Add(1);
        break;
      case ExtensionKind::kDigest:
        digests_.Add(1);
        break;
      case ExtensionKind::kSnapshot:
        snapshots_.Add(1);
        break;
    }
  }
}

ReplayService::Answer ReplayService::AnswerTo(const ReplayRequest& request, MonotonicNanos now) {
  Answer answer;
  if (!request.extension) {
    if (answers_ != nullptr && answers_->snapshot() == SnapshotForm::kXllm) {
      answer.snapshot = answers_->AskSnapshot(SnapshotShape::kWhole, now);
    } else {
      answer.next = request.start;
      answer.last = buffer_->newest();
    }
    return answer;
  }
  switch (request.extension->kind) {
    case ExtensionKind::kHello:
      answer.message = answers_->AnswerHello();
      break;
    case ExtensionKind::kDigest:
      answer.message = answers_->AnswerDigest(request.extension->number);
      break;
    case ExtensionKind::kSnapshot:
      answer.snapshot = answers_->AskSnapshot(SnapshotShape::kChunks, now);
      break;
  }
  return answer;
}

void ReplayService::Forget(const Answer& answer) {
  if (answer.snapshot) answers_->walks().Leave(*answer.snapshot);
}

void ReplayService::Admit(std::vector<std::uint8_t> identity, const std::optional<ReplayRequest>& request,
                          MonotonicNanos now) {
  const auto waits = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const WaitingClient& client) { return client.identity == identity; });
  if (waits != waiting_.end() && request) {
    if (NeedsPlace(*request)) {
      waits->request = *request;
      return;
    }
    waiting_.erase(waits);
  } else if (waits != waiting_.end()) {
    return;  // the end mark is due anyway
  }
  if (clients_.size() < kMaxClients) {
    Seat(std::move(identity), request ? AnswerTo(*request, now) : Answer(), now);
  } else if (request && NeedsPlace(*request)) {
    Wait(std::move(identity), *request);
  } else {
    AnswerAtOnce(identity, request ? AnswerTo(*request, now) : Answer(), now);
  }
}

// A link without room for it has none for a client that reads, either.
void ReplayService::AnswerAtOnce(const std::vector<std::uint8_t>& identity, Answer answer, MonotonicNanos now) {
  while (true) {
    const Outgoing outgoing = Next(answer, now);
    if (Send(identity, outgoing) != SendResult::kSent) {
      dropped_.Add(1);
      return;
    }
    if (outgoing.kind == Outgoing::Kind::kEnd) return;
    Advance(&answer, outgoing);
  }
}

void ReplayService::Wait(std::vector<std::uint8_t> identity, const ReplayRequest& request) {
  if (waiting_.size() < kMaxWaiting) {
    waiting_.push_back({std::move(identity), request});
    return;
  }
  dropped_.Add(1);
  ++turned_away_;
}

// One that is gone meanwhile shows by its first message.
void ReplayService::AdmitWaiting(MonotonicNanos now) {
  while (!waiting_.empty() && clients_.size() < kMaxClients) {
    WaitingClient client = std::move(waiting_.front());
    waiting_.pop_front();
    Seat(std::move(client.identity), AnswerTo(client.request, now), now);
  }
}

void ReplayService::Seat(std::vector<std::uint8_t> identity, Answer answer, MonotonicNanos now) {
  clients_.push_back({std::move(identity), std::move(answer), now, {now}});
}

void ReplayService::Remove(std::size_t index) {
  Forget(clients_[index].answer);
  clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(index));
  if (index < turn_) --turn_;
}

// Of places, one for each that waits.
std::size_t ReplayService::GiveUpSlow(MonotonicNanos now) {
  std::size_t given_up = 0;
  for (std::size_t i = 0; i < clients_.size();) {
    Client& client = clients_[i];
    client.pace.Look(now);
    const bool hinders =
        given_up < waiting_.size() || (client.answer.snapshot && answers_->walks().HoldsUp(*client.answer.snapshot));
    if (!client.pace.slow || !hinders) {
      ++i;
      continue;
    }
    Remove(i);
    dropped_.Add(1);
    slow_.Add(1);
    ++given_up;
  }
  return given_up;
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
    Remove(i);
    if (clients_.empty()) break;
  }
  ++turn_;
  return finished + (kSliceMessages - budget.messages);
}

ReplayService::Progress ReplayService::Serve(Client* client, Budget* budget, MonotonicNanos now) {
  while (budget->messages > 0 && budget->bytes > 0) {
    const Outgoing outgoing = Next(client->answer, now);
    if (outgoing.kind == Outgoing::Kind::kWait) {
      // For the host, whose patience is not the client's.
      client->last_progress = now;
      client->pace = {now};
      return Progress::kBlocked;
    }
    const SendResult result = Send(client->identity, outgoing);
    if (result == SendResult::kWouldBlock) {
      return now - client->last_progress > kProgressDeadline ? Progress::kGone : Progress::kBlocked;
    }
    if (result != SendResult::kSent) return Progress::kGone;
    client->last_progress = now;
    --budget->messages;
    if (outgoing.kind == Outgoing::Kind::kEnd) return Progress::kDone;
    const std::size_t size = outgoing.payload ? outgoing.payload->size() : 0;
    budget->bytes -= std::min(budget->bytes, size);
    ++client->pace.messages;
    client->pace.bytes += size;
    Advance(&client->answer, outgoing);
  }
  return Progress::kTurnOver;
}

ReplayService::Outgoing ReplayService::Next(const Answer& answer, MonotonicNanos now) const {
  if (answer.message) {
    return {Outgoing::Kind::kMessage, answer.message->name, answer.message->number, answer.message->payload};
  }
  if (answer.snapshot) {
    SnapshotWalks::Offer offer = answers_->walks().Next(*answer.snapshot, now);
    if (offer.kind == SnapshotWalks::Offer::Kind::kWait) return {Outgoing::Kind::kWait, {}, 0, nullptr};
    if (offer.kind == SnapshotWalks::Offer::Kind::kEnd) return End();
    const auto label = offer.name.empty() ? Label(topic_) : offer.name;
    return {Outgoing::Kind::kMessage, label, offer.number, std::move(offer.payload)};
  }
  std::optional<ReplayBuffer::Entry> entry = answer.last ? buffer_->Find(answer.next) : std::nullopt;
  if (!entry || entry->number > *answer.last) return End();
  return {Outgoing::Kind::kMessage, Label(topic_), entry->number, std::move(entry->payload)};
}

void ReplayService::Advance(Answer* answer, const Outgoing& sent) {
  if (answer->snapshot) {
    answers_->walks().Advance(*answer->snapshot);
  } else if (answer->message) {
    answer->message.reset();
  } else {
    messages_.Add(1);
    answer->next = sent.number + 1;
  }
}

// With a topic frame it is empty: consumers know the end mark by its number and its empty payload.
ReplayService::Outgoing ReplayService::End() const { return {Outgoing::Kind::kEnd, Label({}), kEndOfReplay, nullptr}; }

std::optional<std::string_view> ReplayService::Label(std::string_view topic) const {
  return layout_ == ReplayLayout::kTopic ? std::optional(topic) : std::nullopt;
}

SendResult ReplayService::Send(const std::vector<std::uint8_t>& identity, const Outgoing& message) {
  const SequenceFrame number = EncodeSequence(message.number);
  const OutFrame payload = message.payload ? OutFrame::Share(message.payload) : OutFrame{};
  if (!message.label) {
    const OutFrame frames[] = {OutFrame::Copy(identity), OutFrame{}, OutFrame::Copy(number), payload};
    return link_->TrySend(frames);
  }
  const OutFrame frames[] = {OutFrame::Copy(identity), OutFrame{}, OutFrame::Copy(AsBytes(*message.label)),
                             OutFrame::Copy(number), payload};
  return link_->TrySend(frames);
}

}  // namespace kvwire
