// SPDX-License-Identifier: Apache-2.0
// An engine with a block pool of its own that publishes its KV events with kvwire. The guide docs/embedding.md quotes
// this file.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/config.h"
#include "kv_events/event_publisher.h"
#include "kv_events/event_recorder.h"
#include "kv_events/publish/factory.h"
#include "kv_events/state_source.h"

namespace {

constexpr std::uint32_t kBlockSize = 4;

// One block of a prompt: what it is called, what precedes it, what is in it.
struct Block {
  kvwire::BlockHash hash;
  std::optional<kvwire::BlockHash> parent;
  std::vector<kvwire::TokenId> tokens;
};

// Cuts the full blocks of a prompt. Any hash will do that depends on the whole prefix; this engine has 64-bit ones.
std::vector<Block> CutIntoBlocks(const std::vector<kvwire::TokenId>& prompt) {
  std::vector<Block> blocks;
  std::uint64_t chain = 0xcbf29ce484222325;
  for (std::size_t at = 0; at + kBlockSize <= prompt.size(); at += kBlockSize) {
    Block block;
    if (!blocks.empty()) block.parent = blocks.back().hash;
    block.tokens.assign(prompt.begin() + static_cast<std::ptrdiff_t>(at),
                        prompt.begin() + static_cast<std::ptrdiff_t>(at + kBlockSize));
    for (const kvwire::TokenId token : block.tokens) chain = (chain ^ token) * 0x100000001b3;
    block.hash = kvwire::BlockHash::FromUint64(chain);
    blocks.push_back(block);
  }
  return blocks;
}

// The pool: a few slots, the least recently used one is given away. A hash may sit in several slots, because the last
// block of a prompt is always computed anew.
class Pool final : public kvwire::StateSource {
 public:
  Pool(std::size_t slots, kvwire::EventRecorder* recorder) : slots_(slots), recorder_(recorder) {}

  // How many leading blocks are resident; they are used now.
  std::size_t Match(const std::vector<Block>& blocks) {
    std::size_t matched = 0;
    while (matched + 1 < blocks.size() && Touch(blocks[matched].hash)) ++matched;
    return matched;
  }

  // Takes slots for blocks[first..]; what was in them is gone.
  std::vector<std::size_t> Allocate(const std::vector<Block>& blocks, std::size_t first) {
    std::vector<std::size_t> taken;
    std::vector<kvwire::BlockHash> evicted;
    for (std::size_t i = first; i < blocks.size(); ++i) {
      const auto victim = std::ranges::min_element(slots_, {}, &Slot::last_used);
      if (victim->block) evicted.push_back(victim->block->hash);
      victim->block.reset();
      victim->last_used = ++now_;
      taken.push_back(static_cast<std::size_t>(victim - slots_.begin()));
    }
    kvwire::BlockRemoved removed;
    removed.block_hashes = evicted;
    recorder_->Remove(removed);
    return taken;
  }

  // The model has computed blocks[first..] into the slots taken for them.
  void Commit(const std::vector<Block>& blocks, std::size_t first, const std::vector<std::size_t>& taken) {
    std::vector<kvwire::BlockHash> hashes;
    std::vector<kvwire::TokenId> tokens;
    for (std::size_t i = first; i < blocks.size(); ++i) {
      slots_[taken[i - first]].block = blocks[i];
      hashes.push_back(blocks[i].hash);
      tokens.insert(tokens.end(), blocks[i].tokens.begin(), blocks[i].tokens.end());
    }
    if (hashes.empty()) return;
    kvwire::BlockStored stored;
    stored.block_hashes = hashes;
    stored.parent_block_hash = blocks[first].parent;
    stored.token_ids = tokens;
    stored.block_size = kBlockSize;
    recorder_->Store(stored);
  }

  // Tells again what was found, for consumers that joined late.
  void ReportHit(const std::vector<Block>& blocks, std::size_t matched) {
    std::vector<kvwire::BlockHash> hashes;
    std::vector<kvwire::TokenId> tokens;
    for (std::size_t i = 0; i < matched; ++i) {
      hashes.push_back(blocks[i].hash);
      tokens.insert(tokens.end(), blocks[i].tokens.begin(), blocks[i].tokens.end());
    }
    kvwire::BlockStored reused;
    reused.block_hashes = hashes;
    reused.token_ids = tokens;
    reused.block_size = kBlockSize;
    recorder_->Reuse(reused);
  }

  // Forgets everything, say because the weights changed.
  void Reset() {
    for (Slot& slot : slots_) slot = Slot();
    recorder_->Clear();
    recorder_->EndStep();
  }

  // What is resident, each hash once: for EventRecorder::Audit.
  void Walk(const std::function<void(const kvwire::ResidentBlock&)>& visit) const override {
    for (auto slot = slots_.begin(); slot != slots_.end(); ++slot) {
      const auto same = [&](const Slot& other) { return other.block && other.block->hash == slot->block->hash; };
      if (!slot->block || std::any_of(slots_.begin(), slot, same)) continue;
      kvwire::ResidentBlock resident;
      resident.hash = slot->block->hash;
      resident.parent = slot->block->parent;
      resident.token_ids = slot->block->tokens;
      visit(resident);
    }
  }

 private:
  struct Slot {
    std::optional<Block> block;
    std::uint64_t last_used = 0;
  };

  bool Touch(const kvwire::BlockHash& hash) {
    for (Slot& slot : slots_) {
      if (!slot.block || slot.block->hash != hash) continue;
      slot.last_used = ++now_;
      return true;
    }
    return false;
  }

  std::vector<Slot> slots_;
  std::uint64_t now_ = 0;
  kvwire::EventRecorder* const recorder_;
};

void LaunchModel() {}
void WaitForModel() {}

// One step serves one prompt.
void Step(const std::vector<kvwire::TokenId>& prompt, Pool* pool, kvwire::EventRecorder* recorder,
          kvwire::EventPublisher* publisher) {
  const std::vector<Block> blocks = CutIntoBlocks(prompt);
  const std::size_t matched = pool->Match(blocks);
  const std::vector<std::size_t> taken = pool->Allocate(blocks, matched);
  LaunchModel();
  publisher->Wake();
  WaitForModel();
  pool->ReportHit(blocks, matched);
  pool->Commit(blocks, matched, taken);
  recorder->EndStep();
}

void Log(kvwire::LogLevel, std::string_view text) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
}

int Run(const std::string& json) {
  const auto config = kvwire::KVEventsConfig::FromJson(json, kvwire::ProcessEnvironment);
  if (!config) {
    std::fprintf(stderr, "%s\n", config.error().message.c_str());
    return 2;
  }
  kvwire::PublisherOptions options;
  options.host_wakes = true;
  options.log = Log;
  const auto created = kvwire::CreateEventPublisher(*config, options);
  if (!created) {
    std::fprintf(stderr, "%s\n", created.error().message.c_str());
    return 2;
  }
  kvwire::EventPublisher* const publisher = created->get();

  kvwire::EventRecorder::Options recording;
  recording.enabled = config->EffectivePublisher() != kvwire::PublisherKind::kNull;
  recording.removals = config->kvwire.removals;
  kvwire::EventRecorder recorder(recording, publisher);

  if (const auto source = publisher->source()) std::printf("endpoint %s\n", source->endpoint.c_str());

  // Prompts of three to six blocks with common beginnings, each served twice, in a pool of eight.
  Pool pool(8, &recorder);
  bool agree = true;
  for (std::uint32_t i = 0; i < 200; ++i) {
    std::vector<kvwire::TokenId> prompt;
    const std::uint32_t id = i / 2;
    const std::uint32_t length = kBlockSize * (3 + id % 4);
    for (std::uint32_t at = 0; at < length; ++at) prompt.push_back(at < kBlockSize * 2 ? id % 3 : id % 7 + at);
    if (i == 150) pool.Reset();
    Step(prompt, &pool, &recorder, publisher);
    if (const auto divergence = recorder.Audit(pool)) {
      std::fprintf(stderr, "%s\n", divergence->message.c_str());
      agree = false;
    }
  }
  std::printf("held %s\n", recorder.digest().ToString().c_str());
  publisher->Close();

  const kvwire::PublisherStats stats = publisher->stats();
  std::printf("submitted %llu sent %llu dropped %llu\n", static_cast<unsigned long long>(stats.submitted),
              static_cast<unsigned long long>(stats.sent),
              static_cast<unsigned long long>(stats.dropped_full + stats.dropped_error + stats.dropped_closed));
  const bool adds_up =
      stats.submitted == stats.sent + stats.dropped_full + stats.dropped_error + stats.dropped_closed + stats.queued;
  return agree && adds_up && stats.sent == stats.submitted ? 0 : 1;
}

}  // namespace

// embed_example [JSON]: the argument is what an engine takes as --kv-events-config.
int main(int argc, char** argv) {
  return Run(argc > 1 ? argv[1] : R"({"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:0",
                            "kvwire": {"mode": "bind"}})");
}
