// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/scheduler/rig.h"

#include <algorithm>
#include <utility>

#include <doctest/doctest.h>

#include "kv_events/hash/extra_keys.h"

namespace kvwire::scheduler {

namespace {

std::string TokensText(std::span<const TokenId> tokens) {
  if (tokens.empty()) return "-";
  bool rising = true;
  bool equal = true;
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    rising = rising && tokens[i] == tokens[i - 1] + 1;
    equal = equal && tokens[i] == tokens[i - 1];
  }
  const std::string first = std::to_string(tokens.front());
  if (tokens.size() == 1) return first;
  if (equal) return first + "x" + std::to_string(tokens.size());
  if (rising) return first + ".." + std::to_string(tokens.back());
  std::string text = first;
  for (const TokenId token : tokens.subspan(1)) text += "," + std::to_string(token);
  return text;
}

std::string KeysText(const BlockStored& stored) {
  if (stored.extra_keys.absent) return " [no extra_keys]";
  if (stored.extra_keys.per_block.empty()) return "";
  struct Of {
    std::string operator()(const std::string& text) const { return text; }
    std::string operator()(const MultimodalKey& key) const { return key.identifier + "@" + std::to_string(key.offset); }
    std::string operator()(const std::vector<std::uint8_t>&) const { return "bytes"; }
    std::string operator()(const OpaqueKey&) const { return "opaque"; }
  };
  std::string text = " [keys";
  for (const ExtraKeys& keys : stored.extra_keys.per_block) {
    text += " (";
    for (std::size_t i = 0; i < keys.size(); ++i) text += (i == 0 ? "" : " ") + std::visit(Of(), keys[i]);
    text += ")";
  }
  return text + "]";
}

std::string PlaceText(const std::optional<std::string_view>& medium, const std::optional<std::uint32_t>& group) {
  std::string text;
  if (medium != kMediumGpu) text += " [medium " + std::string(medium.value_or("nil")) + "]";
  if (group != 0u) text += " [group " + (group ? std::to_string(*group) : std::string("nil")) + "]";
  return text;
}

}  // namespace

void EventTexts::Name(const std::string& prefix, const std::vector<BlockHash>& chain) {
  for (std::size_t i = 0; i < chain.size(); ++i) names_.emplace(chain[i], prefix + std::to_string(i));
}

std::string EventTexts::NameOf(const BlockHash& hash) const {
  const auto found = names_.find(hash);
  return found == names_.end() ? std::to_string(hash.Low64()) : found->second;
}

std::string EventTexts::Of(const BlockStored& stored) const {
  std::string text = "S ";
  for (std::size_t i = 0; i < stored.block_hashes.size(); ++i) {
    text += (i == 0 ? "" : ",") + NameOf(stored.block_hashes[i]);
  }
  text += " < " + (stored.parent_block_hash ? NameOf(*stored.parent_block_hash) : "nil");
  text += " : " + TokensText(stored.token_ids);
  text += KeysText(stored) + PlaceText(stored.medium, stored.group_idx);
  if (stored.block_size != block_size_) text += " [block_size " + std::to_string(stored.block_size) + "]";
  if (stored.lora_id || stored.lora_name) {
    text += " [lora " + std::to_string(stored.lora_id.value_or(-1)) + " " +
            std::string(stored.lora_name.value_or("nil")) + "]";
  }
  if (stored.kv_cache_spec_kind != kind_)
    text += " [kind " + std::string(stored.kv_cache_spec_kind.value_or("nil")) + "]";
  if (stored.kv_cache_spec_sliding_window) {
    text += " [window " + std::to_string(*stored.kv_cache_spec_sliding_window) + "]";
  }
  return text;
}

std::string EventTexts::Of(const BlockRemoved& removed) const {
  std::string text = "R";
  for (const BlockHash& hash : removed.block_hashes) text += " " + NameOf(hash);
  return text + PlaceText(removed.medium, removed.group_idx);
}

Texts EventTexts::Of(const KVEventBatch& batch) const {
  Texts texts;
  batch.Visit([&](const auto& event) { texts.push_back(Of(event)); });
  return texts;
}

EventTexts CountedNames(std::uint32_t block_size) {
  EventTexts texts(block_size);
  texts.Name("h", ChainOf(HasherWithSeed("0"), Range(1, 64), 4));
  return texts;
}

Rig::Rig(SchedulerConfig config, std::string_view seed, std::int64_t rank) : publisher_(rank) {
  auto created = Scheduler::Create(std::move(config), HasherWithSeed(seed), &publisher_, &clock_);
  REQUIRE(created);
  scheduler_ = std::move(*created);
}

void Rig::Add(RequestId id, std::vector<TokenId> prompt, std::uint32_t max_tokens, ExtraArgs extra_args) {
  NewRequest request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.extra_args = std::move(extra_args);
  const Status added = scheduler_->AddRequest(std::move(request));
  if (!added) FAIL(added.error().message);
}

std::vector<FinishedRequest> Rig::Step(std::initializer_list<TokenId> tokens) { return Update(Schedule(), tokens); }

std::vector<FinishedRequest> Rig::Update(const SchedulerOutput& step, std::initializer_list<TokenId> tokens) {
  RunnerOutput output;
  auto next = tokens.begin();
  for (const ScheduledRequest& request : step.requests) {
    if (!request.samples) continue;
    output.sampled.push_back(SampledToken{request.id, next == tokens.end() ? 7 : *next++});
  }
  return scheduler_->UpdateFromOutput(step, output);
}

Texts Rig::Published(const EventTexts& texts) {
  Texts published;
  for (const KVEventBatch& batch : publisher_.TakeBatches()) {
    if (!published.empty()) published.push_back("|");
    const Texts events = texts.Of(batch);
    published.insert(published.end(), events.begin(), events.end());
  }
  return published;
}

SchedulerConfig SmallConfig(std::uint32_t num_blocks, std::uint32_t block_size) {
  SchedulerConfig config;
  config.num_blocks = num_blocks;
  config.block_size = block_size;
  config.enable_kv_cache_events = true;
  return config;
}

SchedulerConfig GroupConfig(std::uint32_t num_blocks, std::vector<KVCacheGroup> groups, Mode mode) {
  SchedulerConfig config = SmallConfig(num_blocks);
  config.groups = std::move(groups);
  config.vllm_exact = mode == Mode::kExact;
  return config;
}

std::uint32_t Finish(Rig& rig, RequestId id, std::vector<TokenId> prompt) {
  rig.Add(id, std::move(prompt), 1);
  std::vector<FinishedRequest> finished;
  while (finished.empty()) finished = rig.Step();
  REQUIRE(finished.size() == 1);
  return finished[0].num_cached_tokens;
}

std::vector<TokenId> With(std::vector<TokenId> tokens, TokenId last) {
  tokens.push_back(last);
  return tokens;
}

}  // namespace kvwire::scheduler
