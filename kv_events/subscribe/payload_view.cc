// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/payload_view.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "kv_events/escape_text.h"

namespace kvwire {

namespace {

constexpr std::size_t kLine = 16;

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

// A msgpack value's first bytes: how many, how many bytes of content follow, and how many values.
struct Header {
  std::size_t size = 1;
  std::uint64_t content = 0;
  std::uint64_t values = 0;
};

std::optional<std::uint64_t> BigEndian(std::span<const std::uint8_t> payload, std::size_t at, std::size_t width) {
  if (payload.size() < at || payload.size() - at < width) return std::nullopt;
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < width; ++i) value = value << 8 | payload[at + i];
  return value;
}

// A header whose length field has `width` bytes.
std::optional<Header> Counted(std::span<const std::uint8_t> payload, std::size_t at, std::size_t width,
                              std::uint64_t per_content, std::uint64_t per_value, std::uint64_t extra = 0) {
  const std::optional<std::uint64_t> length = BigEndian(payload, at + 1, width);
  if (!length) return std::nullopt;
  return Header{1 + width, *length * per_content + extra, *length * per_value};
}

std::optional<Header> ReadHeader(std::span<const std::uint8_t> payload, std::size_t at) {
  if (at >= payload.size()) return std::nullopt;
  const std::uint8_t tag = payload[at];
  if (tag <= 0x7f || tag >= 0xe0) return Header{};
  if (tag <= 0x8f) return Header{1, 0, std::uint64_t{2} * (tag & 0x0fu)};
  if (tag <= 0x9f) return Header{1, 0, tag & 0x0fu};
  if (tag <= 0xbf) return Header{1, tag & 0x1fu, 0};
  if (tag <= 0xc3) return Header{};
  if (tag <= 0xc6) return Counted(payload, at, std::size_t{1} << (tag - 0xc4), 1, 0);
  if (tag <= 0xc9) return Counted(payload, at, std::size_t{1} << (tag - 0xc7), 1, 0, 1);
  if (tag == 0xca) return Header{1, 4, 0};
  if (tag == 0xcb) return Header{1, 8, 0};
  if (tag <= 0xcf) return Header{1, std::uint64_t{1} << (tag - 0xcc), 0};
  if (tag <= 0xd3) return Header{1, std::uint64_t{1} << (tag - 0xd0), 0};
  if (tag <= 0xd8) return Header{1, 1 + (std::uint64_t{1} << (tag - 0xd4)), 0};
  if (tag <= 0xdb) return Counted(payload, at, std::size_t{1} << (tag - 0xd9), 1, 0);
  return Counted(payload, at, tag == 0xdc || tag == 0xde ? 2 : 4, 0, tag >= 0xde ? 2 : 1);
}

bool IsArray(std::uint8_t tag) { return (tag >= 0x90 && tag <= 0x9f) || tag == 0xdc || tag == 0xdd; }
bool IsMap(std::uint8_t tag) { return (tag >= 0x80 && tag <= 0x8f) || tag == 0xde || tag == 0xdf; }

// Where the list of events begins.
std::optional<std::size_t> FindEventList(std::span<const std::uint8_t> payload) {
  const std::optional<Header> batch = ReadHeader(payload, 0);
  if (!batch) return std::nullopt;
  if (IsArray(payload[0]) && batch->values >= 2) return EndOfValue(payload, batch->size);
  if (!IsMap(payload[0])) return std::nullopt;
  static constexpr std::string_view kKey =
      "\xa6"
      "events";
  std::size_t at = batch->size;
  for (std::uint64_t i = 0; i < batch->values / 2; ++i) {
    const std::optional<std::size_t> value = EndOfValue(payload, at);
    if (!value) return std::nullopt;
    const std::string_view key(reinterpret_cast<const char*>(payload.data()) + at, *value - at);
    if (key == kKey) return value;
    const std::optional<std::size_t> next = EndOfValue(payload, *value);
    if (!next) return std::nullopt;
    at = *next;
  }
  return std::nullopt;
}

void AppendLine(std::span<const std::uint8_t> payload, std::size_t line, ByteRange marked, std::string* out) {
  auto to = std::back_inserter(*out);
  fmt::format_to(to, "  {:06x} ", line);
  const std::size_t end = std::min(line + kLine, payload.size());
  for (std::size_t i = line; i < end; ++i) {
    const char before = marked.begin != marked.end && i == marked.begin ? '[' : i == marked.end && i > line ? ']' : ' ';
    fmt::format_to(to, "{}{:02x}", before, payload[i]);
  }
  if (marked.begin != marked.end && end == marked.end && end > line) *out += ']';
  *out += '\n';
}

std::string Hashes(std::span<const BlockHash> hashes) {
  if (hashes.empty()) return "[]";
  if (hashes.size() == 1) return fmt::format("[{}]", hashes[0].ToHex());
  if (hashes.size() == 2) return fmt::format("[{}, {}]", hashes[0].ToHex(), hashes[1].ToHex());
  return fmt::format("[{}, .. {} .., {}]", hashes.front().ToHex(), hashes.size() - 2, hashes.back().ToHex());
}

std::string Field(std::string_view name, const std::optional<std::string_view>& value) {
  return value ? fmt::format(" {}={}", name, EscapeField(*value)) : std::string();
}

template <class T>
std::string Field(std::string_view name, const std::optional<T>& value) {
  return value ? fmt::format(" {}={}", name, *value) : std::string();
}

std::string Describe(const BlockStored& stored) {
  std::string text =
      fmt::format("BlockStored block_hashes={} parent_block_hash={} tokens={} block_size={}",
                  Hashes(stored.block_hashes), stored.parent_block_hash ? stored.parent_block_hash->ToHex() : "none",
                  stored.token_ids.size(), stored.block_size);
  text += Field("medium", stored.medium) + Field("group_idx", stored.group_idx) + Field("lora_name", stored.lora_name);
  text += Field("kv_cache_spec_kind", stored.kv_cache_spec_kind) + Field("locality", stored.locality);
  std::size_t keyed = 0;
  for (const ExtraKeys& keys : stored.extra_keys.per_block) keyed += keys.empty() ? 0 : 1;
  if (keyed > 0) text += fmt::format(" blocks_with_extra_keys={}", keyed);
  return text;
}

std::string Describe(const BlockRemoved& removed) {
  return fmt::format("BlockRemoved block_hashes={}", Hashes(removed.block_hashes)) + Field("medium", removed.medium) +
         Field("group_idx", removed.group_idx) + Field("locality", removed.locality);
}

}  // namespace

std::optional<std::size_t> EndOfValue(std::span<const std::uint8_t> payload, std::size_t begin) {
  std::size_t at = begin;
  // Values still to pass; a count from the payload cannot make this run longer than the payload.
  std::uint64_t open = 1;
  while (open > 0) {
    const std::optional<Header> header = ReadHeader(payload, at);
    if (!header) return std::nullopt;
    at += header->size;
    if (header->content > payload.size() - at) return std::nullopt;
    at += static_cast<std::size_t>(header->content);
    open += header->values - 1;
  }
  return at;
}

std::vector<ByteRange> FindEvents(std::span<const std::uint8_t> payload) {
  std::vector<ByteRange> events;
  const std::optional<std::size_t> list = FindEventList(payload);
  if (!list || *list >= payload.size() || !IsArray(payload[*list])) return events;
  const std::optional<Header> header = ReadHeader(payload, *list);
  if (!header) return events;
  std::size_t at = *list + header->size;
  for (std::uint64_t i = 0; i < header->values; ++i) {
    const std::optional<std::size_t> end = EndOfValue(payload, at);
    if (!end) break;
    events.push_back({at, *end});
    at = *end;
  }
  return events;
}

std::string HexDump(std::span<const std::uint8_t> payload, ByteRange marked, std::size_t max_bytes) {
  std::string out;
  marked.end = std::min(marked.end, payload.size());
  marked.begin = std::min(marked.begin, marked.end);
  const std::size_t first = marked.begin / kLine - std::min<std::size_t>(marked.begin / kLine, 1);
  const std::size_t last = std::min((marked.end + kLine - 1) / kLine + 1, (payload.size() + kLine - 1) / kLine);
  const std::size_t lines = std::max<std::size_t>(max_bytes / kLine, 4);
  for (std::size_t line = first; line < last; ++line) {
    // Three quarters from the front, the rest from the end.
    if (last - first > lines && line == first + lines * 3 / 4) {
      const std::size_t resume = last - lines / 4;
      fmt::format_to(std::back_inserter(out), "  ...... {} bytes\n", (resume - line) * kLine);
      line = resume;
    }
    AppendLine(payload, line * kLine, marked, &out);
  }
  return out;
}

std::string DescribeEvent(const KVEventBatch::Event& event) {
  return std::visit(Overloaded{[](const BlockStored& stored) { return Describe(stored); },
                               [](const BlockRemoved& removed) { return Describe(removed); },
                               [](const AllBlocksCleared&) { return std::string("AllBlocksCleared"); }},
                    event);
}

}  // namespace kvwire
