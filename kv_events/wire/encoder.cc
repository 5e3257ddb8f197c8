// SPDX-License-Identifier: Apache-2.0
#include "kv_events/wire/encoder.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <type_traits>
#include <variant>

#include "kv_events/wire/msgpack_writer.h"

namespace kvwire {

namespace {

using Switches = KVEventsConfig::Extensions;

// More than all heads, keys and scalars of one event take, whatever its fields. The keys of a BlockStored are 158
// bytes.
constexpr std::size_t kEventOverhead = 512;
constexpr std::size_t kBatchOverhead = 64;

// The first 8 bytes, for consumers whose integer form is made of them; a shorter hash is padded with zeros on the left.
std::uint64_t First64(const BlockHash& hash) {
  std::uint64_t value = 0;
  for (const std::uint8_t byte : hash.bytes().first(std::min<std::size_t>(hash.size(), 8))) value = value << 8 | byte;
  return value;
}

std::size_t TextBound(const std::optional<std::string_view>& text) { return text ? text->size() : 0; }

std::size_t KeyBound(const ExtraKey& key) {
  constexpr std::size_t kHeads = 3 * MsgpackWriter::kMaxHead;
  return kHeads + std::visit(
                      [](const auto& value) {
                        using Key = std::decay_t<decltype(value)>;
                        if constexpr (std::is_same_v<Key, MultimodalKey>) {
                          return value.identifier.size();
                        } else if constexpr (std::is_same_v<Key, OpaqueKey>) {
                          return value.msgpack.size();
                        } else {
                          return value.size();
                        }
                      },
                      key);
}

std::size_t HashesBound(std::size_t count) { return count * (BlockHash::kMaxSize + 2); }

// Writes events one by one: Bound() says how much room one needs, MoveTo() where it goes, Write() writes it.
class EventWriter {
 public:
  explicit EventWriter(const Switches& switches) : switches_(switches) {}

  void MoveTo(std::uint8_t* at) { out_ = MsgpackWriter(at); }
  std::uint8_t* at() const { return out_.at(); }

  // Upper bounds of what Write() stores for the same event, slack included.
  std::size_t Bound(const BlockStored& event) const {
    std::size_t bytes = kEventOverhead + HashesBound(event.block_hashes.size() + 1) + 5 * Tokens(event).size() +
                        MediumBound(event.medium) + TextBound(event.lora_name) + TextBound(event.kv_cache_spec_kind) +
                        TextBound(event.locality) + TextBound(event.ownership) + TextBound(event.session_id);
    if (!event.extra_keys.absent) bytes += MsgpackWriter::kMaxHead * event.block_hashes.size();
    for (const ExtraKeys& keys : event.extra_keys.per_block) {
      for (const ExtraKey& key : keys) bytes += KeyBound(key);
    }
    return bytes;
  }
  std::size_t Bound(const BlockRemoved& event) const {
    return kEventOverhead + HashesBound(event.block_hashes.size()) + MediumBound(event.medium) +
           TextBound(event.locality) + TextBound(event.ownership);
  }
  std::size_t Bound(const AllBlocksCleared&) const { return kEventOverhead; }

  void Write(const BlockStored& event) {
    if (switches_.event_format == EventFormat::kArray) {
      WriteArray(event);
    } else {
      WriteMap(event);
    }
  }
  void Write(const BlockRemoved& event) {
    if (switches_.event_format == EventFormat::kArray) {
      WriteArray(event);
    } else {
      WriteMap(event);
    }
  }
  void Write(const AllBlocksCleared&) {
    if (switches_.event_format == EventFormat::kArray) {
      out_.Array(1);
    } else {
      out_.Map(1);
      out_.Str("type");
    }
    out_.Str("AllBlocksCleared");
  }

 private:
  std::span<const TokenId> Tokens(const BlockStored& event) const {
    return switches_.token_ids == TokenIds::kFull ? event.token_ids : std::span<const TokenId>();
  }

  void WriteMap(const BlockStored& event) {
    out_.Map(8u + static_cast<unsigned>(!event.extra_keys.absent) + static_cast<unsigned>(event.group_idx.has_value()) +
             static_cast<unsigned>(event.kv_cache_spec_kind.has_value()) +
             static_cast<unsigned>(event.kv_cache_spec_sliding_window.has_value()) +
             static_cast<unsigned>(event.locality.has_value()) + static_cast<unsigned>(event.ownership.has_value()) +
             static_cast<unsigned>(event.session_id.has_value()));
    out_.Str("type");
    out_.Str("BlockStored");
    out_.Str("block_hashes");
    Hashes(event.block_hashes);
    out_.Str("parent_block_hash");
    Parent(event.parent_block_hash);
    out_.Str("token_ids");
    out_.Tokens(Tokens(event));
    out_.Str("block_size");
    out_.Uint(event.block_size);
    out_.Str("lora_id");
    LoraId(event.lora_id);
    out_.Str("medium");
    Medium(event.medium);
    out_.Str("lora_name");
    Text(event.lora_name);
    if (!event.extra_keys.absent) {
      out_.Str("extra_keys");
      Extras(event);
    }
    OptionalNumber("group_idx", event.group_idx);
    OptionalText("kv_cache_spec_kind", event.kv_cache_spec_kind);
    OptionalNumber("kv_cache_spec_sliding_window", event.kv_cache_spec_sliding_window);
    OptionalText("locality", event.locality);
    OptionalText("ownership", event.ownership);
    OptionalText("session_id", event.session_id);
  }

  void WriteArray(const BlockStored& event) {
    const bool full = switches_.array_tail == ArrayTail::kFull;
    out_.Array(full ? 12 : 9);
    out_.Str("BlockStored");
    Hashes(event.block_hashes);
    Parent(event.parent_block_hash);
    out_.Tokens(Tokens(event));
    out_.Uint(event.block_size);
    LoraId(event.lora_id);
    Medium(event.medium);
    Text(event.lora_name);
    if (event.extra_keys.absent) {
      out_.Nil();
    } else {
      Extras(event);
    }
    if (!full) return;
    Number(event.group_idx);
    Text(event.kv_cache_spec_kind);
    Number(event.kv_cache_spec_sliding_window);
  }

  void WriteMap(const BlockRemoved& event) {
    out_.Map(3u + static_cast<unsigned>(event.group_idx.has_value()) +
             static_cast<unsigned>(event.locality.has_value()) + static_cast<unsigned>(event.ownership.has_value()));
    out_.Str("type");
    out_.Str("BlockRemoved");
    out_.Str("block_hashes");
    Hashes(event.block_hashes);
    out_.Str("medium");
    Medium(event.medium);
    OptionalNumber("group_idx", event.group_idx);
    OptionalText("locality", event.locality);
    OptionalText("ownership", event.ownership);
  }

  void WriteArray(const BlockRemoved& event) {
    const bool full = switches_.array_tail == ArrayTail::kFull;
    out_.Array(full ? 4 : 3);
    out_.Str("BlockRemoved");
    Hashes(event.block_hashes);
    Medium(event.medium);
    if (full) Number(event.group_idx);
  }

  void Hash(const BlockHash& hash) {
    const bool wide = switches_.wide_hashes == WideHashes::kAlways;
    switch (switches_.hash_form) {
      case HashForm::kUint64:
        wide ? out_.WideUint(hash.Low64()) : out_.Uint(hash.Low64());
        return;
      case HashForm::kInt64:
        Signed(static_cast<std::int64_t>(hash.Low64()), wide);
        return;
      case HashForm::kFirstInt64:
        Signed(static_cast<std::int64_t>(First64(hash)), wide);
        return;
      case HashForm::kBytes:
        out_.Bin(hash.bytes());
        return;
    }
  }
  void Signed(std::int64_t value, bool wide) { wide ? out_.WideInt(value) : out_.Int(value); }

  void Hashes(std::span<const BlockHash> hashes) {
    out_.Array(hashes.size());
    for (const BlockHash& hash : hashes) Hash(hash);
  }
  void Parent(const std::optional<BlockHash>& parent) { parent ? Hash(*parent) : out_.Nil(); }
  void LoraId(const std::optional<std::int64_t>& id) { id ? out_.Int(*id) : out_.Nil(); }
  void Number(const std::optional<std::uint32_t>& value) { value ? out_.Uint(*value) : out_.Nil(); }
  void Text(const std::optional<std::string_view>& text) { text ? out_.Str(*text) : out_.Nil(); }

  void OptionalNumber(std::string_view key, const std::optional<std::uint32_t>& value) {
    if (!value) return;
    out_.Str(key);
    out_.Uint(*value);
  }
  void OptionalText(std::string_view key, const std::optional<std::string_view>& text) {
    if (!text) return;
    out_.Str(key);
    out_.Str(*text);
  }

  std::string_view Renamed(std::string_view medium) const {
    if (medium == kMediumGpu) return switches_.medium_gpu;
    if (medium == kMediumCpu) return switches_.medium_cpu;
    if (medium == kMediumDisk) return switches_.medium_disk;
    if (medium == kMediumStorage) return switches_.medium_storage;
    return medium;
  }
  std::size_t MediumBound(const std::optional<std::string_view>& medium) const {
    return medium ? Renamed(*medium).size() : 0;
  }
  void Medium(const std::optional<std::string_view>& medium) { medium ? out_.Str(Renamed(*medium)) : out_.Nil(); }

  void Extras(const BlockStored& event) {
    out_.Array(event.block_hashes.size());
    if (event.extra_keys.per_block.empty()) {
      for (std::size_t i = 0; i < event.block_hashes.size(); ++i) out_.Nil();
    }
    for (const ExtraKeys& keys : event.extra_keys.per_block) {
      if (keys.empty()) {
        out_.Nil();
        continue;
      }
      out_.Array(keys.size());
      for (const ExtraKey& key : keys) std::visit([this](const auto& value) { Key(value); }, key);
    }
  }
  void Key(const std::string& text) { out_.Str(text); }
  void Key(const std::vector<std::uint8_t>& bytes) { out_.Bin(bytes); }
  void Key(const OpaqueKey& key) { out_.Raw(key.msgpack.data(), key.msgpack.size()); }
  void Key(const MultimodalKey& key) {
    out_.Array(2);
    out_.Str(key.identifier);
    out_.Int(key.offset);
  }

  const Switches& switches_;
  MsgpackWriter out_{nullptr};
};

}  // namespace

void BatchEncoder::Encode(const KVEventBatch& batch, std::vector<std::uint8_t>* out) const {
  const std::size_t start = out->size();
  // A first guess of the room; each event then makes sure of what it needs.
  out->resize(start + kBatchOverhead + 256 * batch.size() + batch.ByteSize());
  MsgpackWriter head(out->data() + start);
  head.Array(3);
  head.Float64(batch.ts);
  head.Array(batch.size());
  std::size_t used = static_cast<std::size_t>(head.at() - out->data());

  EventWriter writer(switches_);
  batch.Visit([&](const auto& event) {
    const std::size_t needed = used + writer.Bound(event) + kBatchOverhead + MsgpackWriter::kSlack;
    if (needed > out->size()) out->resize(std::max(needed, 2 * out->size()));
    writer.MoveTo(out->data() + used);
    writer.Write(event);
    used = static_cast<std::size_t>(writer.at() - out->data());
  });

  MsgpackWriter tail(out->data() + used);
  batch.data_parallel_rank ? tail.Int(*batch.data_parallel_rank) : tail.Nil();
  out->resize(static_cast<std::size_t>(tail.at() - out->data()));
}

}  // namespace kvwire
