// SPDX-License-Identifier: Apache-2.0
#include "engine/faults/fault_link.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "kv_events/wire/frames.h"

namespace kvwire::engine {

namespace {

constexpr MonotonicNanos kNanosPerMs = 1'000'000;

// MessagePack's one unused byte: no value begins with it.
constexpr std::uint8_t kNoValue = 0xc1;

std::size_t BytesOf(std::span<const OutFrame> frames) {
  std::size_t bytes = 0;
  for (const OutFrame& frame : frames) bytes += frame.bytes.size();
  return bytes;
}

}  // namespace

FaultLink::FaultLink(FrameLink* inner, FaultPlan* plan, FaultCounters* counters, const Clock* clock)
    : inner_(inner),
      plan_(plan),
      counters_(counters),
      clock_(clock),
      undecodable_(std::make_shared<const std::vector<std::uint8_t>>(1, kNoValue)) {
  plan_->BeginLife();
}

FaultLink::~FaultLink() { Flush(std::numeric_limits<MonotonicNanos>::max()); }

std::optional<InFrames> FaultLink::TryReceive() {
  if (!held_.empty()) Flush(clock_->Now());
  return inner_->TryReceive();
}

std::optional<MonotonicNanos> FaultLink::due() const noexcept {
  if (held_.empty()) return std::nullopt;
  return held_.front().due;
}

SendResult FaultLink::TrySend(std::span<const OutFrame> frames) noexcept {
  if (!held_.empty()) Flush(clock_->Now());
  if (held_.size() >= kMaxHeldMessages || held_bytes_ >= kMaxHeldBytes) return SendResult::kWouldBlock;
  const Effect effect = EffectOn(frames);
  if (!effect.drop) {
    std::vector<OutFrame> sent(frames.begin(), frames.end());
    if (effect.undecodable) sent.back() = OutFrame::Share(undecodable_);
    const SendResult result = SendOrHold(sent, effect);
    if (result != SendResult::kSent) return result;
  }
  Count(effect);
  return SendResult::kSent;
}

FaultLink::Effect FaultLink::EffectOn(std::span<const OutFrame> frames) noexcept {
  Effect effect;
  const std::optional<SequenceNumber> number =
      frames.size() == 3 ? DecodeSequence(frames[1].bytes) : std::optional<SequenceNumber>();
  if (!number) return effect;
  for (const Fault* fault : plan_->Decide(*number)) {
    switch (fault->kind) {
      case FaultKind::kDrop:
        effect = Effect();
        effect.drop = true;
        return effect;
      case FaultKind::kDuplicate:
        effect.duplicate = true;
        break;
      case FaultKind::kUndecodable:
        effect.undecodable = true;
        break;
      case FaultKind::kDelay:
        effect.delay_ms = std::max(effect.delay_ms, fault->delay_ms);
        break;
      case FaultKind::kOverflow:
      case FaultKind::kEvict:
      case FaultKind::kPreempt:
      case FaultKind::kReset:
      case FaultKind::kRestart:
        break;  // carried out elsewhere
    }
  }
  return effect;
}

SendResult FaultLink::SendOrHold(std::span<const OutFrame> frames, const Effect& effect) {
  if (held_.empty() && effect.delay_ms == 0) {
    const SendResult sent = inner_->TrySend(frames);
    if (sent != SendResult::kSent || !effect.duplicate) return sent;
    if (inner_->TrySend(frames) == SendResult::kWouldBlock) Hold(frames, clock_->Now());
    return SendResult::kSent;
  }
  const MonotonicNanos due = clock_->Now() + effect.delay_ms * kNanosPerMs;
  Hold(frames, due);
  if (effect.duplicate) Hold(frames, due);
  return SendResult::kSent;
}

void FaultLink::Hold(std::span<const OutFrame> frames, MonotonicNanos due) {
  Held held;
  held.bytes = BytesOf(frames);
  held.due = held_.empty() ? due : std::max(due, held_.back().due);
  for (const OutFrame& frame : frames) {
    held.frames.push_back(
        frame.shared ? frame.shared
                     : std::make_shared<const std::vector<std::uint8_t>>(frame.bytes.begin(), frame.bytes.end()));
  }
  held_bytes_ += held.bytes;
  held_.push_back(std::move(held));
}

void FaultLink::Flush(MonotonicNanos now) noexcept {
  while (!held_.empty() && held_.front().due <= now) {
    std::vector<OutFrame> frames;
    for (const SharedBytes& bytes : held_.front().frames) frames.push_back(OutFrame::Share(bytes));
    if (inner_->TrySend(frames) == SendResult::kWouldBlock) return;
    held_bytes_ -= held_.front().bytes;
    held_.pop_front();
  }
}

void FaultLink::Count(const Effect& effect) noexcept {
  if (effect.drop) counters_->Count(FaultKind::kDrop);
  if (effect.duplicate) counters_->Count(FaultKind::kDuplicate);
  if (effect.undecodable) counters_->Count(FaultKind::kUndecodable);
  if (effect.delay_ms > 0) counters_->Count(FaultKind::kDelay);
}

}  // namespace kvwire::engine
