// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/tap_format.h"

#include <span>
#include <string_view>
#include <type_traits>
#include <variant>

#include <fmt/format.h>

#include "kv_events/escape_text.h"
#include "kv_events/subscribe/payload_view.h"

namespace kvwire::engine {

namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

template <class Bytes>
std::string Hex(const Bytes& bytes) {
  std::string text;
  for (const auto byte : bytes) text += fmt::format("{:02x}", static_cast<std::uint8_t>(byte));
  return text;
}

Json HashesAsJson(std::span<const BlockHash> hashes) {
  Json list = Json::array();
  for (const BlockHash& hash : hashes) list.push_back(hash.ToHex());
  return list;
}

Json ExtraKeyAsJson(const ExtraKey& key) {
  return std::visit(Overloaded{[](const std::string& text) { return Json(text); },
                               [](const MultimodalKey& item) {
                                 return Json::array({item.identifier, item.offset});
                               },
                               [](const std::vector<std::uint8_t>& bytes) {
                                 return Json{{"bytes", Hex(bytes)}};
                               },
                               [](const OpaqueKey& opaque) {
                                 return Json{{"msgpack", Hex(opaque.msgpack)}};
                               }},
                    key);
}

Json ExtraKeysAsJson(const ExtraKeysView& view, std::size_t blocks) {
  Json list = Json::array();
  for (std::size_t i = 0; i < blocks; ++i) {
    if (i >= view.per_block.size() || view.per_block[i].empty()) {
      list.push_back(nullptr);
      continue;
    }
    Json keys = Json::array();
    for (const ExtraKey& key : view.per_block[i]) keys.push_back(ExtraKeyAsJson(key));
    list.push_back(std::move(keys));
  }
  return list;
}

template <class T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <class T>
void PutIfSet(Json* object, const char* key, const std::optional<T>& value) {
  if (value) (*object)[key] = *value;
}

Json EventAsJson(const BlockStored& stored) {
  Json object{{"type", "BlockStored"},
              {"block_hashes", HashesAsJson(stored.block_hashes)},
              {"parent_block_hash", stored.parent_block_hash ? Json(stored.parent_block_hash->ToHex()) : Json(nullptr)},
              {"token_ids", Json(std::vector<TokenId>(stored.token_ids.begin(), stored.token_ids.end()))},
              {"block_size", stored.block_size},
              {"lora_id", OrNull(stored.lora_id)},
              {"medium", OrNull(stored.medium)},
              {"lora_name", OrNull(stored.lora_name)}};
  if (!stored.extra_keys.absent) {
    object["extra_keys"] = ExtraKeysAsJson(stored.extra_keys, stored.block_hashes.size());
  }
  PutIfSet(&object, "group_idx", stored.group_idx);
  PutIfSet(&object, "kv_cache_spec_kind", stored.kv_cache_spec_kind);
  PutIfSet(&object, "kv_cache_spec_sliding_window", stored.kv_cache_spec_sliding_window);
  PutIfSet(&object, "locality", stored.locality);
  PutIfSet(&object, "ownership", stored.ownership);
  PutIfSet(&object, "session_id", stored.session_id);
  return object;
}

Json EventAsJson(const BlockRemoved& removed) {
  Json object{{"type", "BlockRemoved"},
              {"block_hashes", HashesAsJson(removed.block_hashes)},
              {"medium", OrNull(removed.medium)}};
  PutIfSet(&object, "group_idx", removed.group_idx);
  PutIfSet(&object, "locality", removed.locality);
  PutIfSet(&object, "ownership", removed.ownership);
  return object;
}

Json EventAsJson(const AllBlocksCleared&) { return Json{{"type", "AllBlocksCleared"}}; }

}  // namespace

std::string BatchAsText(const StreamMessage& message, const DecodedBatch& batch, std::size_t max_lines) {
  const std::string rank =
      batch.batch.data_parallel_rank ? fmt::format("rank {}", *batch.batch.data_parallel_rank) : "no rank";
  const std::string_view origin = message.origin == MessageOrigin::kReplay ? "  replayed" : "";
  const std::string time = batch.without_time ? std::string("no time") : fmt::format("{:.3f}", batch.batch.ts);
  const std::string prefix = fmt::format("{:>6}  {}  {}{}  ", message.sequence, time, rank, origin);
  if (batch.batch.empty() && batch.rejected.empty()) return max_lines == 0 ? std::string() : prefix + "no events\n";
  std::string text;
  for (std::size_t i = 0; i < batch.batch.size() && i < max_lines; ++i) {
    text += prefix + DescribeEvent(batch.batch.at(i)) + '\n';
  }
  for (const RejectedEvent& rejected : batch.rejected) {
    text += fmt::format("{}rejected: {}\n", prefix, EscapeText(rejected.error.message));
  }
  return text;
}

Json BatchAsJson(const StreamMessage& message, const DecodedBatch& batch) {
  Json events = Json::array();
  batch.batch.Visit([&events](const auto& event) { events.push_back(EventAsJson(event)); });
  Json object{{"seq", message.sequence},
              {"topic", message.topic},
              {"replayed", message.origin == MessageOrigin::kReplay},
              {"ts", batch.without_time ? Json(nullptr) : Json(batch.batch.ts)},
              {"data_parallel_rank", OrNull(batch.batch.data_parallel_rank)},
              {"events", std::move(events)}};
  for (const RejectedEvent& rejected : batch.rejected) {
    object["rejected"].push_back({{"index", rejected.index}, {"error", rejected.error.message}});
  }
  return object;
}

Json ViolationAsJson(const Violation& violation) {
  Json object{{"rule", ToString(violation.rule)}, {"seq", violation.sequence},    {"what", violation.what},
              {"event", violation.event_text},    {"history", violation.history}, {"hex", violation.hex}};
  PutIfSet(&object, "index", violation.event);
  if (!violation.block.empty()) object["block"] = violation.block.ToHex();
  return object;
}

std::string JsonLine(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string line;
  line.reserve(text.size() + 1);
  // DEL and C1 (two bytes, C2 first) occur inside of strings only.
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    const auto next = static_cast<std::uint8_t>(i + 1 < text.size() ? text[i + 1] : 0);
    if (byte == 0x7f) {
      line += "\\u007f";
    } else if (byte == 0xc2 && next >= 0x80 && next <= 0x9f) {
      line += fmt::format("\\u{:04x}", next);
      ++i;
    } else {
      line += text[i];
    }
  }
  line += '\n';
  return line;
}

}  // namespace kvwire::engine
