// SPDX-License-Identifier: Apache-2.0
// A message to the replay ROUTER. The input is its frames: each a byte with the length, then so many bytes, or what is
// left of them.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "kv_events/publish/replay_service.h"
#include "kv_events/publish/state_answers.h"
#include "kv_events/wire/extensions.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/stream_support.h"

namespace kvwire::fuzz {
namespace {

constexpr std::size_t kMaxFrames = 16;
constexpr SequenceNumber kFirst = 3;
constexpr SequenceNumber kLast = 7;

InFrames FramesOf(std::span<const std::uint8_t> input) {
  InFrames frames;
  while (!input.empty() && frames.size() < kMaxFrames) {
    const std::size_t length = std::min<std::size_t>(input[0], input.size() - 1);
    frames.emplace_back(input.begin() + 1, input.begin() + 1 + static_cast<std::ptrdiff_t>(length));
    input = input.subspan(1 + length);
  }
  // A socket gives no message without frames.
  if (frames.empty()) frames.emplace_back();
  return frames;
}

// The answer to a request: some batches with rising numbers, then one end mark, and nothing is left to be done.
void CheckService(const InFrames& frames, ReplayLayout layout) {
  test::MemoryRouter router;
  ReplayBuffer buffer(100, std::size_t{1} << 20);
  for (SequenceNumber n = kFirst; n <= kLast; ++n) {
    buffer.Append(n, std::make_shared<const std::vector<std::uint8_t>>(10, static_cast<std::uint8_t>(n)));
  }
  ReplayService service("test", layout, &router, &buffer);
  const auto dealer = router.Connect("d");
  KVWIRE_PROMISE(test::SendFrames(dealer.get(), frames) == SendResult::kSent);
  for (int turn = 0; turn < 8; ++turn) service.DoWork(0);
  KVWIRE_PROMISE(service.DoWork(0) == 0);
  KVWIRE_PROMISE(service.clients() == 0);
  KVWIRE_PROMISE(service.requests() + service.malformed() == 1);

  std::vector<test::Replayed> answer;
  while (auto message = test::ReceiveReplayed(dealer.get())) answer.push_back(std::move(*message));
  KVWIRE_PROMISE(!answer.empty());
  KVWIRE_PROMISE(answer.back().end);
  KVWIRE_PROMISE(service.messages() == answer.size() - 1);
  KVWIRE_PROMISE(service.requests() == 1 || answer.size() == 1);
  for (std::size_t i = 0; i + 1 < answer.size(); ++i) {
    KVWIRE_PROMISE(!answer[i].end);
    KVWIRE_PROMISE(answer[i].number == kLast + 2 - answer.size() + i);
  }
}

// The readers of what a ROUTER is asked and tells of the state: what is read is written and read again alike.
void CheckExtensions(FrameView frame) {
  if (const auto request = ParseExtensionRequest(frame)) {
    KVWIRE_PROMISE(std::ranges::equal(EncodeExtensionRequest(*request), frame));
  }
  if (const auto hello = DecodeHello(frame)) {
    std::vector<std::uint8_t> bytes;
    EncodeHello(*hello, &bytes);
    KVWIRE_PROMISE(DecodeHello(bytes) == hello.value());
  }
  if (const auto digest = DecodeDigest(frame)) {
    std::vector<std::uint8_t> bytes;
    EncodeDigest(*digest, &bytes);
    KVWIRE_PROMISE(DecodeDigest(bytes) == digest.value());
  }
}

// The same message to a ROUTER that knows of the state: one answer, ended, at once or when its patience is over.
void CheckStateService(const InFrames& frames, SnapshotForm form) {
  test::MemoryRouter router;
  ReplayBuffer buffer(100, std::size_t{1} << 20);
  StateRequests requests(nullptr);
  StateAnswers::Options options;
  options.snapshot = form;
  options.walks.encode = [](const KVEventBatch&, std::vector<std::uint8_t>* out) { out->push_back(0x90); };
  StateAnswers answers(options, &buffer, &requests);
  buffer.Append(kFirst, std::make_shared<const std::vector<std::uint8_t>>(10));
  ReplayService service("test", ReplayLayout::kTopic, &router, &buffer, &answers);
  const auto dealer = router.Connect("d");
  KVWIRE_PROMISE(test::SendFrames(dealer.get(), frames) == SendResult::kSent);
  for (int turn = 0; turn < 8; ++turn) service.DoWork(0);
  for (int turn = 0; turn < 8; ++turn) service.DoWork(SnapshotWalks::kPatience + 1);
  KVWIRE_PROMISE(service.clients() == 0);
  KVWIRE_PROMISE(service.requests() + service.malformed() + service.hellos() + service.digests() <= 1);
  std::vector<test::Told> told;
  while (auto message = test::ReceiveTold(dealer.get())) told.push_back(std::move(*message));
  KVWIRE_PROMISE(!told.empty() && told.size() <= 2 && told.back().end);
}

// The other readers of frames, on the same bytes.
void CheckFrames(const InFrames& frames) {
  std::vector<FrameView> views;
  for (const auto& frame : frames) {
    views.emplace_back(frame);
    CheckExtensions(frame);
    const std::optional<SequenceNumber> number = DecodeSequence(frame);
    KVWIRE_PROMISE(number.has_value() == (frame.size() == 8));
    const std::optional<SequenceNumber> start = DecodeReplayStart(frame);
    KVWIRE_PROMISE(start.has_value() == (frame.size() <= 16));
    if (number) {
      KVWIRE_PROMISE(number == start);
      KVWIRE_PROMISE(std::ranges::equal(EncodeSequence(*number), frame));
    }
  }
  if (const auto told = ParseExtensionMessage(views)) KVWIRE_PROMISE(views.size() == 4 && views[0].empty());
  if (const auto live = ParseLiveMessage(views)) KVWIRE_PROMISE(views.size() == 3);
  if (const auto replay = ParseReplayMessage(views)) {
    KVWIRE_PROMISE(views.size() == (replay->topic ? 4 : 3));
    KVWIRE_PROMISE(replay->end == (replay->sequence == kEndOfReplay || replay->payload.empty()));
  }
}

}  // namespace
}  // namespace kvwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvwire;
  const InFrames frames = fuzz::FramesOf({data, size});
  fuzz::CheckFrames(frames);
  for (const ReplayLayout layout : {ReplayLayout::kTopic, ReplayLayout::kLegacy}) fuzz::CheckService(frames, layout);
  for (const SnapshotForm form : {SnapshotForm::kKvwire, SnapshotForm::kXllm, SnapshotForm::kOff}) {
    fuzz::CheckStateService(frames, form);
  }
  return 0;
}
