// SPDX-License-Identifier: Apache-2.0
#include "kv_events/wire/extensions.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "kv_events/wire/decode_context.h"
#include "kv_events/wire/msgpack_reader.h"
#include "kv_events/wire/msgpack_writer.h"

namespace kvwire {

namespace {

constexpr std::size_t kMaxEntries = 1024;
constexpr std::size_t kMaxMediumBytes = 256;
constexpr std::size_t kMaxAnswerBytes = std::size_t{1} << 20;
constexpr std::uint64_t kEntryFields = 4;
// Containers around a value: a hello's map, the digest in it, an entry.
constexpr std::uint32_t kHelloDepth = 1;
constexpr std::uint32_t kHelloValueDepth = 2;

struct Name {
  std::string_view text;
  ExtensionKind kind;
};
constexpr Name kRequests[] = {{kHelloName, ExtensionKind::kHello},
                              {kDigestName, ExtensionKind::kDigest},
                              {kSnapshotName, ExtensionKind::kSnapshot}};
constexpr std::string_view kAnswers[] = {kHelloName, kDigestName, kChunkName, kSnapshotEndName};

constexpr std::string_view kExact = "exact";
constexpr std::string_view kPerCopy = "per_copy";

// The keys of a hello, in the order in which they are written.
enum HelloKey : std::uint8_t {
  kEpoch,
  kRank,
  kFirst,
  kNext,
  kOldest,
  kHeartbeat,
  kSnapshots,
  kRemovals,
  kHelloDigest,
  kHelloKeys
};
constexpr std::string_view kHelloKeyNames[kHelloKeys] = {"epoch",  "data_parallel_rank",    "first",     "next",
                                                         "oldest", "heartbeat_interval_ms", "snapshots", "removals",
                                                         "digest"};

std::string_view TextOf(FrameView frame) { return {reinterpret_cast<const char*>(frame.data()), frame.size()}; }

std::size_t DigestRoom(const DigestEntries& entries) {
  std::size_t room = MsgpackWriter::kMaxHead;
  for (const StateDigest::Entry& entry : entries) room += 5 * MsgpackWriter::kMaxHead + entry.medium.size();
  return room;
}

void WriteDigest(const DigestEntries& entries, MsgpackWriter* writer) {
  writer->Array(entries.size());
  for (const StateDigest::Entry& entry : entries) {
    writer->Array(kEntryFields);
    writer->Uint(entry.group);
    writer->Str(entry.medium);
    writer->Uint(entry.count);
    writer->Uint(entry.sum);
  }
}

// Appends what `write` writes, which takes at most `room` bytes.
template <class Write>
void Append(std::size_t room, const Write& write, std::vector<std::uint8_t>* out) {
  const std::size_t before = out->size();
  out->resize(before + room + MsgpackWriter::kSlack);
  MsgpackWriter writer(out->data() + before);
  write(&writer);
  out->resize(static_cast<std::size_t>(writer.at() - out->data()));
}

DecodeLimits AnswerLimits() {
  DecodeLimits limits;
  limits.max_payload_bytes = kMaxAnswerBytes;
  limits.max_text_bytes = kMaxMediumBytes;
  return limits;
}

// Reads one answer's payload.
class AnswerReader {
 public:
  AnswerReader(FrameView payload, std::string_view what) : what_(what), reader_(payload, limits_.max_depth) {
    At(what);
  }

  tl::expected<Hello, DecodeError> TakeHello() {
    Hello hello;
    if (!Sized() || !ReadHello(&hello) || !AtEnd()) return tl::unexpected<DecodeError>(context_.TakeError());
    return hello;
  }

  tl::expected<DigestEntries, DecodeError> TakeDigest() {
    DigestEntries entries;
    if (!Sized() || !ReadDigest(&entries) || !AtEnd()) return tl::unexpected<DecodeError>(context_.TakeError());
    return entries;
  }

 private:
  void At(std::string_view field) {
    context_.place() = DecodePlace{};
    context_.place().field = field;
  }

  bool Sized() {
    if (reader_.remaining() <= limits_.max_payload_bytes) return true;
    return context_.Fail(
        DecodeErrorCode::kLimitExceeded, 0,
        fmt::format("payload of {} bytes, at most {} are read", reader_.remaining(), limits_.max_payload_bytes));
  }

  bool AtEnd() {
    if (reader_.remaining() == 0) return true;
    At(what_);
    return context_.Fail(DecodeErrorCode::kTrailingBytes, reader_.offset(),
                         fmt::format("{} bytes follow", reader_.remaining()));
  }

  bool ReadHello(Hello* hello) {
    MsgpackItem map;
    if (!context_.Next(&map)) return false;
    if (map.type != MsgpackType::kMap) return context_.Unexpected(map, "map");
    if (!context_.Enter(map, kHelloDepth)) return false;
    bool seen[kHelloKeys] = {};
    for (std::uint64_t i = 0; i < map.number; ++i) {
      At(what_);
      const std::size_t offset = reader_.offset();
      std::string_view key;
      if (!context_.Key(&key, kHelloValueDepth)) return false;
      const auto* const known = std::ranges::find(kHelloKeyNames, key);
      if (known == std::end(kHelloKeyNames)) {
        if (!context_.Skip(kHelloValueDepth)) return false;
        continue;
      }
      At(*known);
      const auto which = static_cast<std::size_t>(known - std::begin(kHelloKeyNames));
      if (std::exchange(seen[which], true)) {
        return context_.Fail(DecodeErrorCode::kInconsistent, offset, "the key is there twice");
      }
      if (!ReadHelloValue(static_cast<HelloKey>(which), hello)) return false;
    }
    for (std::size_t key = 0; key < kHelloKeys; ++key) {
      if (seen[key] || key == kOldest || key == kHelloDigest) continue;
      At(kHelloKeyNames[key]);
      return context_.Fail(DecodeErrorCode::kMissingField, map.offset, "a hello must have it");
    }
    return true;
  }

  bool ReadHelloValue(HelloKey key, Hello* hello) {
    switch (key) {
      case kEpoch:
        return Uint64(&hello->epoch);
      case kRank:
        return Int64(&hello->data_parallel_rank);
      case kFirst:
        return Uint64(&hello->first);
      case kNext:
        return Uint64(&hello->next);
      case kOldest:
        if (TakeNil()) return true;
        return Uint64(&hello->oldest.emplace());
      case kHeartbeat:
        return Uint32(&hello->heartbeat_interval_ms);
      case kSnapshots:
        return Bool(&hello->snapshots);
      case kRemovals:
        return ReadRemovals(&hello->removals);
      case kHelloDigest:
        if (TakeNil()) return true;
        return ReadDigest(&hello->digest.emplace());
      case kHelloKeys:
        break;
    }
    return false;
  }

  bool ReadRemovals(Removals* removals) {
    MsgpackItem item;
    if (!context_.Next(&item)) return false;
    if (item.type != MsgpackType::kStr) return context_.Unexpected(item, "str");
    if (item.text() != kExact && item.text() != kPerCopy) {
      return context_.Fail(DecodeErrorCode::kOutOfRange, item.offset,
                           fmt::format("neither \"{}\" nor \"{}\"", kExact, kPerCopy));
    }
    *removals = item.text() == kExact ? Removals::kExact : Removals::kPerCopy;
    return true;
  }

  bool ReadDigest(DigestEntries* entries) {
    MsgpackItem array;
    if (!context_.Next(&array)) return false;
    if (array.type != MsgpackType::kArray) return context_.Unexpected(array, "array");
    if (array.number > kMaxEntries) {
      return context_.Fail(DecodeErrorCode::kLimitExceeded, array.offset,
                           fmt::format("{} entries, at most {} are read", array.number, kMaxEntries));
    }
    entries->clear();
    for (std::size_t i = 0; i < array.number; ++i) {
      context_.place().element = i;
      StateDigest::Entry entry;
      if (!ReadEntry(&entry)) return false;
      if (!entries->empty() &&
          std::tie(entries->back().group, entries->back().medium) >= std::tie(entry.group, entry.medium)) {
        return context_.Fail(DecodeErrorCode::kInconsistent, reader_.offset(),
                             "entries are not in ascending order of group, then medium");
      }
      entries->push_back(std::move(entry));
    }
    context_.place().element = DecodePlace::kNowhere;
    return true;
  }

  bool ReadEntry(StateDigest::Entry* entry) {
    MsgpackItem array;
    if (!context_.Next(&array)) return false;
    if (array.type != MsgpackType::kArray) return context_.Unexpected(array, "array");
    if (array.number != kEntryFields) {
      return context_.Fail(DecodeErrorCode::kBadShape, array.offset,
                           fmt::format("{} elements, an entry has {}", array.number, kEntryFields));
    }
    std::size_t& key = context_.place().key;
    key = 0;
    if (!Uint32(&entry->group)) return false;
    key = 1;
    if (!Text(&entry->medium)) return false;
    key = 2;
    if (!Uint64(&entry->count)) return false;
    key = 3;
    if (!Uint64(&entry->sum)) return false;
    key = DecodePlace::kNowhere;
    return true;
  }

  bool TakeNil() {
    const std::size_t start = reader_.offset();
    MsgpackItem item;
    if (reader_.Next(&item) == ReadFault::kNone && item.type == MsgpackType::kNil) return true;
    reader_.Rewind(start);
    return false;
  }

  bool Uint64(std::uint64_t* value) {
    MsgpackItem item;
    if (!context_.Next(&item)) return false;
    if (item.type == MsgpackType::kNegative) {
      return context_.Fail(DecodeErrorCode::kOutOfRange, item.offset,
                           fmt::format("{} is below 0", static_cast<std::int64_t>(item.number)));
    }
    if (item.type != MsgpackType::kUint) return context_.Unexpected(item, "integer");
    *value = item.number;
    return true;
  }

  bool Uint32(std::uint32_t* value) {
    const std::size_t start = reader_.offset();
    std::optional<std::uint32_t> number;
    if (!context_.OptionalUint32(&number)) return false;
    if (!number) return context_.Fail(DecodeErrorCode::kBadType, start, "expected integer, found nil");
    *value = *number;
    return true;
  }

  bool Int64(std::int64_t* value) {
    const std::size_t start = reader_.offset();
    std::optional<std::int64_t> number;
    if (!context_.OptionalInt64(&number)) return false;
    if (!number) return context_.Fail(DecodeErrorCode::kBadType, start, "expected integer, found nil");
    *value = *number;
    return true;
  }

  bool Bool(bool* value) {
    MsgpackItem item;
    if (!context_.Next(&item)) return false;
    if (item.type != MsgpackType::kBool) return context_.Unexpected(item, "bool");
    *value = item.number != 0;
    return true;
  }

  bool Text(std::string* value) {
    MsgpackItem item;
    if (!context_.Next(&item)) return false;
    if (item.type != MsgpackType::kStr) return context_.Unexpected(item, "str");
    std::string_view text;
    if (!context_.Text(item, &text)) return false;
    value->assign(text);
    return true;
  }

  const std::string_view what_;
  const DecodeLimits limits_ = AnswerLimits();
  MsgpackReader reader_;
  DecodeContext context_{&reader_, limits_};
};

}  // namespace

std::vector<std::uint8_t> EncodeExtensionRequest(const ExtensionRequest& request) {
  const std::string_view name = std::ranges::find(kRequests, request.kind, &Name::kind)->text;
  std::vector<std::uint8_t> frame(name.begin(), name.end());
  if (request.kind != ExtensionKind::kDigest) return frame;
  const SequenceFrame number = EncodeSequence(request.number);
  frame.insert(frame.end(), number.begin(), number.end());
  return frame;
}

std::optional<ExtensionRequest> ParseExtensionRequest(FrameView frame) noexcept {
  for (const Name& name : kRequests) {
    if (!TextOf(frame).starts_with(name.text)) continue;
    const FrameView argument = frame.subspan(name.text.size());
    ExtensionRequest request{name.kind, 0};
    if (name.kind != ExtensionKind::kDigest) return argument.empty() ? std::optional(request) : std::nullopt;
    const std::optional<SequenceNumber> number = DecodeSequence(argument);
    if (!number) return std::nullopt;
    request.number = *number;
    return request;
  }
  return std::nullopt;
}

void EncodeHello(const Hello& hello, std::vector<std::uint8_t>* out) {
  std::size_t room = (2 * kHelloKeys + 1) * MsgpackWriter::kMaxHead + kPerCopy.size();
  for (const std::string_view name : kHelloKeyNames) room += name.size();
  if (hello.digest) room += DigestRoom(*hello.digest);
  const auto write = [&hello](MsgpackWriter* writer) {
    writer->Map(kHelloKeys);
    writer->Str(kHelloKeyNames[kEpoch]);
    writer->Uint(hello.epoch);
    writer->Str(kHelloKeyNames[kRank]);
    writer->Int(hello.data_parallel_rank);
    writer->Str(kHelloKeyNames[kFirst]);
    writer->Uint(hello.first);
    writer->Str(kHelloKeyNames[kNext]);
    writer->Uint(hello.next);
    writer->Str(kHelloKeyNames[kOldest]);
    hello.oldest ? writer->Uint(*hello.oldest) : writer->Nil();
    writer->Str(kHelloKeyNames[kHeartbeat]);
    writer->Uint(hello.heartbeat_interval_ms);
    writer->Str(kHelloKeyNames[kSnapshots]);
    writer->Bool(hello.snapshots);
    writer->Str(kHelloKeyNames[kRemovals]);
    writer->Str(hello.removals == Removals::kExact ? kExact : kPerCopy);
    writer->Str(kHelloKeyNames[kHelloDigest]);
    hello.digest ? WriteDigest(*hello.digest, writer) : writer->Nil();
  };
  Append(room, write, out);
}

tl::expected<Hello, DecodeError> DecodeHello(FrameView payload) { return AnswerReader(payload, "hello").TakeHello(); }

void EncodeDigest(const DigestEntries& entries, std::vector<std::uint8_t>* out) {
  Append(
      DigestRoom(entries), [&entries](MsgpackWriter* writer) { WriteDigest(entries, writer); }, out);
}

tl::expected<DigestEntries, DecodeError> DecodeDigest(FrameView payload) {
  return AnswerReader(payload, "digest").TakeDigest();
}

std::optional<ExtensionMessage> ParseExtensionMessage(std::span<const FrameView> frames) noexcept {
  if (frames.size() != 4 || !frames[0].empty()) return std::nullopt;
  const std::string_view name = TextOf(frames[1]);
  const std::optional<SequenceNumber> number = DecodeSequence(frames[2]);
  if (!number || std::ranges::find(kAnswers, name) == std::end(kAnswers)) return std::nullopt;
  return ExtensionMessage{name, *number, frames[3]};
}

}  // namespace kvwire
