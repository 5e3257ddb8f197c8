// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/kv_transfer.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/http/caller_scope.h"
#include "engine/http/http_call.h"
#include "engine/serve/rank_life.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

using scheduler::BlockId;
using scheduler::Reception;

namespace {

// Holds that end, and arrivals that try again, wait for step threads.
constexpr std::size_t kTimerThreads = 2;
constexpr WorkerPool::Options kFetchThreads{.max_threads = 256, .max_waiting = 4096};
constexpr std::chrono::milliseconds kConnectTime(2000);
constexpr std::chrono::milliseconds kFetchTime(10000);
// Between two attempts to reach a step thread whose inbox is full.
constexpr std::chrono::milliseconds kRetry(20);
constexpr std::size_t kWordBytes = sizeof(std::uint64_t);

using Clock = std::chrono::steady_clock;

// The other engine's block of each that is received, by group.
tl::expected<std::vector<std::vector<BlockId>>, std::string> SourceBlocks(const Reception& reception,
                                                                          const KVTransferParams& source) {
  std::vector<std::vector<BlockId>> blocks(reception.parts.size());
  for (std::size_t group = 0; group < reception.parts.size(); ++group) {
    const Reception::Part& part = reception.parts[group];
    for (std::size_t position = part.first; position < part.first + part.blocks.size(); ++position) {
      const bool given = group < source.remote_block_ids.size() && position < source.remote_block_ids[group].size() &&
                         source.remote_block_ids[group][position] != scheduler::kNullBlock;
      if (!given) {
        return tl::unexpected<std::string>(
            fmt::format("remote_block_ids has nothing for block {} of group {}", position, group));
      }
      blocks[group].push_back(source.remote_block_ids[group][position]);
    }
  }
  return blocks;
}

std::size_t CountReceived(const Reception& reception) {
  std::size_t blocks = 0;
  for (const Reception::Part& part : reception.parts) blocks += part.blocks.size();
  return blocks;
}

}  // namespace

std::string NameOf(const HeldRequest& held, std::string_view life) {
  return fmt::format("{}-{}-{}", held.rank, held.id, life);
}

std::optional<HeldRequest> ParseHeldRequest(std::string_view name, std::string_view life) {
  HeldRequest held;
  const char* const end = name.data() + name.size();
  const auto rank = std::from_chars(name.data(), end, held.rank);
  if (rank.ec != std::errc() || rank.ptr == end || *rank.ptr != '-') return std::nullopt;
  const auto id = std::from_chars(rank.ptr + 1, end, held.id);
  if (id.ec != std::errc() || name != NameOf(held, life)) return std::nullopt;
  return held;
}

std::string PackWords(std::span<const std::uint64_t> words) {
  std::string bytes;
  bytes.reserve(words.size() * kWordBytes);
  for (const std::uint64_t word : words) {
    for (std::size_t i = 0; i < kWordBytes; ++i) bytes += static_cast<char>((word >> (8 * i)) & 0xff);
  }
  return bytes;
}

std::vector<std::uint64_t> UnpackWords(std::string_view bytes) {
  std::vector<std::uint64_t> words(bytes.size() / kWordBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    words[i / kWordBytes] |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * (i % kWordBytes));
  }
  return words;
}

// A reception on its way.
struct KVTransfer::Arriving {
  std::uint32_t rank = 0;
  Reception reception;
  KVTransferParams source;
  Clock::time_point due;                                 // the end of its model time
  std::optional<std::vector<std::uint64_t>> words = {};  // none: failed
};

KVTransfer::KVTransfer(KVTransferConfig config, Call call, LogSink log)
    : config_(std::move(config)),
      call_(std::move(call)),
      log_(std::move(log)),
      timer_(kTimerThreads),
      fetches_(kFetchThreads) {}

void KVTransfer::Stop() {
  stopped_.store(true, std::memory_order_relaxed);
  timer_.Stop();
  fetches_.Stop();
}

// Runs on a thread of its own; false if there is no place for it.
bool KVTransfer::Start(std::function<void()> fetch) {
  return fetches_.Submit([this, fetch = std::move(fetch)] {
    const CallerScope scope([this] { return stopped_.load(std::memory_order_relaxed); });
    if (!stopped_.load(std::memory_order_relaxed)) fetch();
  });
}

void KVTransfer::Begin(std::uint32_t rank, Reception reception, KVTransferParams source) {
  const auto blocks = static_cast<std::int64_t>(CountReceived(reception));
  const Clock::time_point due = Clock::now() + config_.overhead + config_.per_block * blocks;
  auto arriving = std::make_shared<Arriving>(Arriving{rank, std::move(reception), std::move(source), due});
  timer_.Post(due, [this, arriving] {
    if (!Start([this, arriving] { Fetch(arriving); })) End(arriving, tl::unexpected<std::string>("too many wait"));
  });
}

void KVTransfer::Release(KVTransferParams source) {
  if (source.remote_block_ids.empty()) return;
  // The hold ends by itself, too.
  [[maybe_unused]] const bool started = Start(
      [this, source = std::move(source)] { [[maybe_unused]] const auto released = Ask(source, {}, 0, kFetchTime); });
}

void KVTransfer::Hold(const HeldRequest& held) {
  timer_.Post(Clock::now() + config_.hold_time, [this, held] {
    bool expired = false;
    call_(held.rank, [&](RankLife& life) { expired = life.ReleaseKept(held.id); });
    if (!expired) return;
    Log(log_, LogLevel::kWarning,
        fmt::format("data-parallel rank {}: nobody fetched the blocks of request {} in time; they are given back",
                    held.rank, NameOf(held, config_.life)));
  });
}

void KVTransfer::Fetch(const std::shared_ptr<Arriving>& arriving) {
  std::optional<std::size_t> room;
  const bool ran = call_(arriving->rank, [&](RankLife& life) { room = life.RoomFor(arriving->reception); });
  const auto blocks = SourceBlocks(arriving->reception, arriving->source);
  if (ran && !room) return Release(arriving->source);  // it was aborted or taken back
  if (!blocks) {
    Release(arriving->source);
    return End(arriving, tl::unexpected<std::string>(blocks.error()));
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(arriving->due + kFetchTime - Clock::now());
  if (left.count() <= 0) return End(arriving, tl::unexpected<std::string>("others take too long"));
  End(arriving, Ask(arriving->source, *blocks, room.value_or(0) * kWordBytes, left));
}

void KVTransfer::End(const std::shared_ptr<Arriving>& arriving, const tl::expected<std::string, std::string>& bytes) {
  if (bytes) arriving->words = UnpackWords(*bytes);
  NoteOutcome(arriving->source, bytes ? nullptr : &bytes.error());
  Deliver(arriving);
}

void KVTransfer::Deliver(const std::shared_ptr<Arriving>& arriving) {
  const bool delivered = call_(arriving->rank, [&](RankLife& life) {
    life.EndReception(arriving->reception, arriving->words ? &*arriving->words : nullptr);
  });
  if (delivered) return;
  timer_.Post(Clock::now() + kRetry, [this, arriving] { Deliver(arriving); });
}

tl::expected<std::string, std::string> KVTransfer::Ask(const KVTransferParams& source,
                                                       const std::vector<std::vector<BlockId>>& blocks,
                                                       std::size_t reply_bytes, std::chrono::milliseconds time) const {
  HttpCall call;
  call.host = source.remote_host;
  call.port = source.remote_port;
  call.path = kTransferPath;
  call.body = nlohmann::json{
      {"engine_id", source.remote_engine_id},
      {"request_id", source.remote_request_id},
      {"block_ids",
       blocks}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  call.connect_timeout = std::min(kConnectTime, time);
  call.reply_timeout = time;
  // Room for an error's text as well.
  constexpr std::size_t kMaxErrorBytes = 64 << 10;
  call.max_reply_bytes = reply_bytes + kMaxErrorBytes;
  auto reply = engine::Call(call);
  if (!reply) return tl::unexpected<std::string>(std::move(reply).error());
  if (reply->status != 200) {
    return tl::unexpected<std::string>(fmt::format("status {}: {}", reply->status, ShortText(reply->body, 200)));
  }
  if (reply->body.size() == reply_bytes) return std::move(reply->body);
  return tl::unexpected<std::string>(
      fmt::format("the reply has {} bytes, expected {}", reply->body.size(), reply_bytes));
}

void KVTransfer::NoteOutcome(const KVTransferParams& source, const std::string* failure) {
  const bool failed = failure != nullptr;
  if (failing_.exchange(failed) == failed) return;
  if (failed) {
    Log(log_, LogLevel::kWarning,
        fmt::format("blocks of request {} could not be fetched from {}:{}: {}; what cannot be fetched is computed here",
                    ShortText(source.remote_request_id), ShortText(source.remote_host), source.remote_port, *failure));
  } else {
    Log(log_, LogLevel::kInfo, "blocks are fetched again");
  }
}

}  // namespace kvwire::engine
