// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "kv_events/config.h"
#include "kv_events/escape_text.h"

namespace kvwire {

namespace {

struct Profile {
  std::string_view name;
  EventFormat event_format;
  ArrayTail array_tail;
  std::optional<HashForm> hash_form;  // unset: the environment decides, as in vLLM
  WideHashes wide_hashes;
  ReplayLayout replay_layout;
  std::string_view gpu = "GPU";
  std::string_view cpu = "CPU";
  std::string_view disk = "DISK";
  std::string_view storage = "STORAGE";
  SnapshotForm snapshot = SnapshotForm::kKvwire;
};

// A row sets every switch that shows in the bytes, so that a new default elsewhere cannot change a named profile.
constexpr Profile kProfiles[] = {
    // vLLM since 0.26: map events, replay with topic.
    {"vllm", EventFormat::kMap, ArrayTail::kFull, std::nullopt, WideHashes::kMinimal, ReplayLayout::kTopic},
    // vLLM 0.22 and 0.23: array events up to the sliding window, nils included; replay without topic.
    {"vllm-0.22", EventFormat::kArray, ArrayTail::kFull, std::nullopt, WideHashes::kMinimal, ReplayLayout::kLegacy},
    // Takes either hash form, but integers only in nine bytes: a hash below 2^32 would cost the whole batch. Its topic
    // must be kv@pod@model.
    {"llm-d", EventFormat::kMap, ArrayTail::kFull, std::nullopt, WideHashes::kAlways, ReplayLayout::kTopic},
    // Refuses byte hashes. Guesses array tails of fewer than four fields by type, so arrays stop before the tail.
    {"dynamo", EventFormat::kMap, ArrayTail::kLegacy, HashForm::kUint64, WideHashes::kMinimal, ReplayLayout::kTopic},
    // Array events only; of byte hashes it reads the first eight bytes, which are not vLLM's integer.
    {"aibrix", EventFormat::kArray, ArrayTail::kLegacy, HashForm::kUint64, WideHashes::kMinimal, ReplayLayout::kTopic},
    // Array events and integer hashes only; asks for no replay. Subscribes to the topic "kv-events", exactly.
    {"kthena", EventFormat::kArray, ArrayTail::kLegacy, HashForm::kUint64, WideHashes::kMinimal, ReplayLayout::kTopic},
    // Map events, 64-bit hashes, media in lower case; cannot take a topic in replay answers, of which it takes one: the
    // whole state.
    {"xllm", EventFormat::kMap, ArrayTail::kFull, HashForm::kUint64, WideHashes::kMinimal, ReplayLayout::kLegacy, "gpu",
     "cpu", "storage", "storage", SnapshotForm::kXllm},
    // Looks like SGLang before its map events: at most nine array elements, signed first 64 bits, its names of media,
    // replay without topic. Nine-byte integers, because llm-d reads this dialect as strictly as vLLM's.
    {"sglang", EventFormat::kArray, ArrayTail::kLegacy, HashForm::kFirstInt64, WideHashes::kAlways,
     ReplayLayout::kLegacy, "GPU", "CPU_PINNED", "DISK", "DISK"},
    // Looks like TensorRT-LLM's streaming publisher: vLLM's map events, unsigned low 64 bits, replay with topic.
    {"trtllm", EventFormat::kMap, ArrayTail::kFull, HashForm::kUint64, WideHashes::kMinimal, ReplayLayout::kTopic},
};

}  // namespace

std::string ProfileNames() {
  std::string names;
  for (const Profile& profile : kProfiles) {
    if (!names.empty()) names += ", ";
    names += fmt::format("'{}'", profile.name);
  }
  return names;
}

Status ApplyProfile(std::string_view name, KVEventsConfig::Extensions* extensions) {
  const auto* const found = std::ranges::find(kProfiles, name, &Profile::name);
  if (found == std::end(kProfiles)) {
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("kvwire.profile: Input should be one of {}, found \"{}\"",
                                                              ProfileNames(), ShortText(name)));
  }
  extensions->profile = found->name;
  extensions->event_format = found->event_format;
  extensions->array_tail = found->array_tail;
  if (found->hash_form) extensions->hash_form = *found->hash_form;
  extensions->wide_hashes = found->wide_hashes;
  extensions->replay_layout = found->replay_layout;
  extensions->medium_gpu = found->gpu;
  extensions->medium_cpu = found->cpu;
  extensions->medium_disk = found->disk;
  extensions->medium_storage = found->storage;
  extensions->snapshot = found->snapshot;
  return {};
}

}  // namespace kvwire
