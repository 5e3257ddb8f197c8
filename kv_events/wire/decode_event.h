// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kv_events/wire/decode_context.h"

namespace kvwire {

// Depths of nesting: the batch is 1, its list of events 2, an event 3.
inline constexpr std::uint32_t kBatchDepth = 1;
inline constexpr std::uint32_t kEventsDepth = 2;
inline constexpr std::uint32_t kEventDepth = 3;
inline constexpr std::uint32_t kFieldDepth = 4;

// Reads events one after the other into a DecodedBatch, reusing its scratch space.
class EventDecoder {
 public:
  EventDecoder(const DecodeOptions& options, DecodeContext* context, DecodedBatch* result)
      : options_(options), context_(*context), result_(*result) {}

  // Reads the index-th event. False: the failure is in the context; if that is not broken, the reader stands behind
  // the event.
  bool Decode(std::size_t index);

 private:
  enum class Kind : std::uint8_t { kStored, kRemoved, kCleared, kUnknown };

  // What a field is, whatever the event.
  enum class Field : std::uint8_t {
    kType,
    kBlockHashes,
    kParent,
    kTokenIds,
    kBlockSize,
    kLoraId,
    kMedium,
    kLoraName,
    kExtraKeys,
    kGroupIdx,
    kSpecKind,
    kSlidingWindow,
    kLocality,
    kOwnership,
    kSessionId,
    kCacheSalt,
    kMmKeys,
    kUnknown,
  };
  static constexpr std::size_t kFields = static_cast<std::size_t>(Field::kUnknown);
  static std::string_view Name(Field field);
  static Field Lookup(std::string_view key, Field last);
  static bool Belongs(Field field, Kind kind);

  // The fields of the event being read. Texts are views into the payload.
  struct Fields {
    Kind kind = Kind::kUnknown;
    MsgpackItem tag;
    bool from_map = false;
    std::uint32_t seen = 0;  // bit per Field
    std::vector<BlockHash> hashes;
    std::optional<BlockHash> parent;
    std::vector<TokenId> tokens;
    std::optional<std::uint32_t> block_size;
    std::optional<std::int64_t> lora_id;
    std::optional<std::string_view> medium, lora_name, spec_kind, locality, ownership, session_id, cache_salt;
    bool has_extra_keys = false;
    std::vector<ExtraKeys> extra_keys;  // one per block, nil as empty
    std::size_t num_keys = 0;
    std::span<const std::uint8_t> mm_keys;
    std::optional<std::uint32_t> group_idx, sliding_window;
    std::size_t ignored = 0;

    void Clear();
  };

  // decode_event.cc: the event as a whole.
  bool DecodeBare();
  bool DecodeWrapped(const MsgpackItem& bin);
  bool DecodeContent(const MsgpackItem& head);
  bool DecodeMap(const MsgpackItem& map);
  bool DecodeArray(const MsgpackItem& array);
  bool FindType(std::uint64_t pairs, std::optional<MsgpackItem>* type);
  bool ReadKind(const MsgpackItem& tag);
  bool Append(std::size_t offset);
  bool AppendStored(std::size_t offset);
  void AppendRemoved();
  bool FailUnknown();
  bool CheckStored(std::size_t offset);
  void AddForeignKeys();
  bool Ignore();

  // decode_fields.cc: the values.
  bool ReadField(Field field);
  bool ReadHashes();
  bool ReadHash(const MsgpackItem& item, BlockHash* hash);
  bool ReadHexHash(const MsgpackItem& item, BlockHash* hash);
  bool ReadParent();
  bool ReadTokens();
  bool ReadToken(const MsgpackItem& item, TokenId* token);
  bool ReadPairs(std::uint64_t count, const MsgpackItem& first);
  bool ReadExtraKeys();
  bool ReadKeysOfBlock(ExtraKeys* keys);
  bool ReadKey(ExtraKey* key);
  bool ReadMultimodalKey(ExtraKey* key, bool* is_one);
  bool ReadOpaqueKey(std::size_t start, ExtraKey* key);
  bool CheckBytes(std::size_t size, std::size_t offset);
  bool ReadMmKeys();
  bool ReadNameOrMetadata();

  const DecodeOptions& options_;
  DecodeContext& context_;
  DecodedBatch& result_;
  Fields fields_;
  std::size_t total_hashes_ = 0;
  std::size_t total_keys_ = 0;
};

}  // namespace kvwire
