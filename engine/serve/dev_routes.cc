// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/dev_routes.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "engine/http/request_body.h"
#include "engine/serve/completion_job.h"
#include "engine/serve/dev_page.h"
#include "engine/serve/fault_effect.h"
#include "engine/serve/kv_state.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

using Json = nlohmann::ordered_json;

// The page draws a block as a square: more would be neither drawn nor sent in time.
constexpr std::uint32_t kMaxBlocksShown = 65536;
// Of one answer, over all ranks: the step thread looks at each.
constexpr std::size_t kMaxBlocksLookedUp = std::size_t{1} << 18;

ApiError Stopped() { return Unavailable("the engine was stopped, or has too many commands waiting"); }

std::string Text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json OrNull(const std::optional<std::uint64_t>& number) { return number ? Json(*number) : Json(nullptr); }

// A whole number in the query, `fallback` when it is not there.
ApiResult<std::uint64_t> NumberOf(const HttpRequest& request, std::string_view name, std::uint64_t fallback,
                                  std::uint64_t most) {
  const std::optional<std::string> text = request.Query(name);
  if (!text) return fallback;
  std::uint64_t value = 0;
  const char* const end = text->data() + text->size();
  const auto [stopped, error] = std::from_chars(text->data(), end, value);
  if (error == std::errc() && stopped == end && value <= most) return value;
  return tl::unexpected(BadRequest(
      std::string(name), fmt::format("{} is \"{}\", expected a number from 0 to {}", name, ShortText(*text), most)));
}

// The fault of {"now": {...}}: of a kind that needs no number, without one.
ApiResult<Fault> FaultNow(const nlohmann::json& body, FieldReader* reader) {
  for (const auto& [key, value] : body.items()) {
    if (key != "now") reader->Refuse(key, value, "nothing but rank beside now");
  }
  nlohmann::json fault = body["now"];
  for (const char* const key : {"at", "every", "probability", "count"}) {
    if (!fault.is_object() || !fault.contains(key)) continue;
    reader->Refuse(fmt::format("now.{}", key), fault[key], "no number, as it happens now");
  }
  if (reader->error()) return tl::unexpected(*reader->error());
  if (fault.is_object()) fault["at"] = 0;
  const Result<FaultScript> script = FaultScript::FromJson(nlohmann::json{{"faults", {std::move(fault)}}}.dump());
  if (script) return script->faults.front();
  constexpr std::string_view kInScript = "faults[0]";
  std::string message = script.error().message;
  if (message.starts_with(kInScript)) message.replace(0, kInScript.size(), "now");
  return tl::unexpected(BadRequest("now", std::move(message)));
}

// A prompt's block as an object: of all groups, and of each if there are several.
std::string AsJson(const std::string& hash, std::span<const BlockLookup> groups, bool has_lower_tiers) {
  std::uint32_t copies = 0;
  bool announced = false;
  std::string_view lower_medium;
  for (const BlockLookup& group : groups) {
    copies += group.copies;
    announced = announced || group.announced;
    if (lower_medium.empty()) lower_medium = group.lower_medium;
  }
  std::string json = fmt::format(R"({{"hash":"{}","copies":{},"announced":{})", hash, copies, announced);
  if (groups.size() > 1) {
    std::vector<std::uint32_t> by_group;
    for (const BlockLookup& group : groups) by_group.push_back(group.copies);
    json += fmt::format(R"(,"copies_by_group":[{}])", fmt::join(by_group, ","));
  }
  if (has_lower_tiers) {
    json += lower_medium.empty() ? R"(,"lower_tier":null)" : fmt::format(R"(,"lower_tier":"{}")", lower_medium);
  }
  return json + "}";
}

// Written as it is: a tree of so many blocks takes many times its text.
std::string AsJson(const PromptLookup& lookup, std::span<const std::string> hashes, std::uint32_t block_size) {
  std::vector<std::string> blocks;
  blocks.reserve(hashes.size());
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    blocks.push_back(AsJson(hashes[i], std::span(lookup.blocks).subspan(i * lookup.num_groups, lookup.num_groups),
                            lookup.has_lower_tiers));
  }
  return fmt::format(
      R"({{"data_parallel_rank":{},"batch":{},"held_prefix_blocks":{},"prefix_tokens":{},"blocks":[{}]}})", lookup.rank,
      OrNull(lookup.batch).dump(), lookup.prefix_tokens / block_size, lookup.prefix_tokens, fmt::join(blocks, ","));
}

}  // namespace

void DevRoutes::Install(HttpServer* server) {
  server->Handle("GET", "/", [](const HttpRequest&) {
    HttpResponse response;
    response.content_type = "text/html; charset=utf-8";
    response.body = DevPage();
    return response;
  });
  Add(server, "GET", "/kv/state", &DevRoutes::State);
  Add(server, "POST", "/kv/lookup", &DevRoutes::Lookup);
  Add(server, "GET", "/dev/pool", &DevRoutes::Pool);
  Add(server, "GET", "/dev/events", &DevRoutes::Events);
  Add(server, "GET", "/dev/faults", &DevRoutes::FaultCounts);
  Add(server, "POST", "/dev/faults", &DevRoutes::Faults);
}

void DevRoutes::Add(HttpServer* server, const char* method, const char* path, Answer answer) {
  server->Handle(method, path, [this, answer](const HttpRequest& request) {
    ApiResult<std::string> body = (this->*answer)(request);
    if (!body) return ErrorResponse(body.error());
    HttpResponse response;
    response.body = *std::move(body);
    return response;
  });
}

ApiResult<std::uint32_t> DevRoutes::RankOf(const HttpRequest& request) const {
  const ApiResult<std::uint64_t> rank = NumberOf(request, "rank", 0, instance_->num_ranks() - 1);
  if (!rank) return tl::unexpected(rank.error());
  return static_cast<std::uint32_t>(*rank);
}

ApiResult<std::string> DevRoutes::State(const HttpRequest& request) {
  const ApiResult<std::uint32_t> rank = RankOf(request);
  if (!rank) return tl::unexpected(rank.error());
  const ApiResult<std::uint64_t> blocks = NumberOf(request, "blocks", 1, 1);
  if (!blocks) return tl::unexpected(blocks.error());
  const auto state = TakeKVState(*instance_, *rank, *blocks == 1 ? KVStateDetail::kBlocks : KVStateDetail::kDigest);
  if (!state) return tl::unexpected(Stopped());
  Json json{{"data_parallel_rank", state->rank},
            {"life", state->life},
            {"batch", OrNull(state->batch)},
            {"digest", state->digest},
            {"num_blocks", state->num_blocks}};
  if (*blocks == 1) json["blocks"] = state->blocks;
  return Text(json);
}

// Of an adapter the name alone is part of the hashes.
std::optional<scheduler::LoraAdapter> DevRoutes::ReadAdapter(FieldReader* reader) const {
  std::optional<std::string> name = reader->Text("lora_name");
  if (!name) return std::nullopt;
  if (std::ranges::find(adapters_, *name) == adapters_.end()) {
    reader->Refuse("lora_name", *name,
                   adapters_.empty() ? "null, as there are no adapters (--lora-modules)"
                                     : fmt::format("the name of an adapter: {}", fmt::join(adapters_, ", ")));
    return std::nullopt;
  }
  return scheduler::LoraAdapter{0, *std::move(name)};
}

ApiResult<std::string> DevRoutes::Lookup(const HttpRequest& request) {
  const ApiResult<nlohmann::json> body = ParseBody(request.body);
  if (!body) return tl::unexpected(body.error());
  FieldReader reader(*body);
  constexpr std::string_view kKeys[] = {"prompt", "cache_salt", "lora_name", "kvwire_multimodal"};
  reader.RefuseOthers(kKeys);
  scheduler::NewRequest asked;
  const nlohmann::json* const prompt = reader.Given("prompt");
  if (prompt == nullptr) {
    reader.RefuseMissing("prompt", "a text or a list of token ids");
  } else if (!prompt->is_string()) {
    asked.prompt = reader.TokenIds("prompt", *prompt).value_or(std::vector<TokenId>());
    asked.multimodal = reader.MultimodalItems("kvwire_multimodal", asked.prompt.size());
  } else if (const nlohmann::json* const items = reader.Given("kvwire_multimodal")) {
    reader.Refuse("kvwire_multimodal", *items, "it only with a prompt that is a list of token ids");
  }
  asked.cache_salt = reader.Text("cache_salt").value_or("");
  asked.lora = ReadAdapter(&reader);
  if (reader.error()) return tl::unexpected(*reader.error());
  if (prompt->is_string()) {
    Result<std::vector<TokenId>> tokens = tokenizer_->Encode(prompt->get<std::string>());
    if (!tokens) return tl::unexpected(Unavailable(tokens.error().message));
    asked.prompt = *std::move(tokens);
  }
  const scheduler::SchedulerConfig& config = instance_->config().scheduler;
  if (auto too_long = TooLong(asked.prompt.size(), config.max_model_len)) return tl::unexpected(*std::move(too_long));
  const std::size_t num_blocks = asked.prompt.size() / config.block_size;
  if (num_blocks * instance_->num_ranks() > kMaxBlocksLookedUp) {
    return tl::unexpected(
        BadRequest("prompt", fmt::format("the prompt has {} full blocks, to be looked up on {} ranks; expected at most "
                                         "{} blocks times ranks",
                                         num_blocks, instance_->num_ranks(), kMaxBlocksLookedUp)));
  }
  BlockHasher hasher = instance_->hasher();
  const scheduler::PromptIdentity identity = scheduler::IdentifyPrompt(asked, config.block_size, &hasher);
  std::vector<std::string> hashes;
  hashes.reserve(identity.hashes.size());
  for (const BlockHash& hash : identity.hashes) hashes.push_back(hash.ToHex());
  std::vector<std::string> ranks;
  for (std::uint32_t rank = 0; rank < instance_->num_ranks(); ++rank) {
    const auto lookup = LookUpPrompt(*instance_, rank, identity);
    if (!lookup) return tl::unexpected(Stopped());
    ranks.push_back(AsJson(*lookup, hashes, config.block_size));
  }
  return fmt::format(R"({{"num_tokens":{},"block_size":{},"ranks":[{}]}})", asked.prompt.size(), config.block_size,
                     fmt::join(ranks, ","));
}

// One letter a block: f free, c free and cached, u in use, h in use and cached.
ApiResult<std::string> DevRoutes::Pool(const HttpRequest& request) {
  const ApiResult<std::uint32_t> rank = RankOf(request);
  if (!rank) return tl::unexpected(rank.error());
  std::string letters;
  std::optional<std::uint64_t> next_batch;
  std::uint32_t num_blocks = 0;
  const bool ran = instance_->Call(*rank, [&](EngineCore& core) {
    const scheduler::BlockPool& pool = core.scheduler().pool();
    num_blocks = pool.num_blocks();
    next_batch = core.next_batch();
    // Block 0 is the null block.
    for (scheduler::BlockId block = 1; block < std::min(num_blocks, kMaxBlocksShown); ++block) {
      const bool held = pool.num_references(block) > 0;
      letters += pool.is_registered(block) ? (held ? 'h' : 'c') : (held ? 'u' : 'f');
    }
  });
  if (!ran) return tl::unexpected(Stopped());
  const EngineThread::Figures figures = instance_->figures(*rank);
  return Text({{"data_parallel_rank", *rank},
               {"num_ranks", instance_->num_ranks()},
               {"num_blocks", num_blocks},
               {"next_batch", OrNull(next_batch)},
               {"running", figures.running},
               {"waiting", figures.waiting},
               {"asleep", figures.asleep},
               {"blocks", letters}});
}

ApiResult<std::string> DevRoutes::Events(const HttpRequest& request) {
  const ApiResult<std::uint32_t> rank = RankOf(request);
  if (!rank) return tl::unexpected(rank.error());
  const ApiResult<std::uint64_t> after = NumberOf(request, "after", 0, ~std::uint64_t{0});
  if (!after) return tl::unexpected(after.error());
  const EventLog& log = (*logs_)[*rank];
  Json events = Json::array();
  for (const EventLog::Line& line : log.Since(*after)) {
    events.push_back({{"id", line.id}, {"batch", line.batch}, {"ts", line.ts}, {"text", line.text}});
  }
  return Text({{"data_parallel_rank", *rank}, {"log", log.name()}, {"events", std::move(events)}});
}

ApiResult<std::string> DevRoutes::FaultCounts(const HttpRequest& request) {
  const ApiResult<std::uint32_t> rank = RankOf(request);
  if (!rank) return tl::unexpected(rank.error());
  Json counts;
  for (std::size_t i = 0; i < kNumFaultKinds; ++i) {
    const auto kind = static_cast<FaultKind>(i);
    counts[std::string(ToString(kind))] = instance_->fault_counters(*rank).Of(kind);
  }
  return Text({{"data_parallel_rank", *rank}, {"happened", std::move(counts)}});
}

// A script {"seed", "faults", "rank"?} takes the place of the last one; {"now": {...}, "rank"?} is one fault at once.
ApiResult<std::string> DevRoutes::Faults(const HttpRequest& request) {
  ApiResult<nlohmann::json> body = ParseBody(request.body);
  if (!body) return tl::unexpected(body.error());
  FieldReader reader(*body);
  constexpr std::string_view kKeys[] = {"rank", "now", "seed", "faults"};
  reader.RefuseOthers(kKeys);
  const std::optional<std::uint32_t> rank = reader.Integer("rank", 0, instance_->num_ranks() - 1);
  if (reader.error()) return tl::unexpected(*reader.error());
  body->erase("rank");
  if (reader.Given("now") != nullptr) {
    const ApiResult<Fault> fault = FaultNow(*body, &reader);
    if (!fault) return tl::unexpected(fault.error());
    if (const Status done = ExecuteNow(*fault, rank.value_or(0)); !done) {
      return tl::unexpected(done.error().code == ErrorCode::kInvalidArgument ? BadRequest("now", done.error().message)
                                                                             : Unavailable(done.error().message));
    }
    return Text({{"done", ToString(fault->kind)}});
  }
  const Result<FaultScript> script = FaultScript::FromJson(body->dump());
  if (!script) return tl::unexpected(BadRequest("faults", script.error().message));
  if (auto reason = WhyWithoutEffect(*script, instance_->config().events)) {
    return tl::unexpected(BadRequest("faults", *std::move(reason)));
  }
  if (const Status set = instance_->SetFaults(*script, rank); !set) {
    return tl::unexpected(BadRequest("faults", set.error().message));
  }
  return script->ToJson();
}

Status DevRoutes::ExecuteNow(const Fault& fault, std::uint32_t rank) {
  switch (fault.kind) {
    case FaultKind::kEvict: {
      const auto evicted = instance_->Evict(rank, fault.block.ToHex(), fault.group);
      if (!evicted) return tl::unexpected<Error>(evicted.error());
      if (*evicted == 0) {
        return MakeError(
            ErrorCode::kInvalidArgument,
            fmt::format("now.block: \"{}\" is not in the device's prefix cache{}; allowed: a block of /kv/lookup "
                        "with copies, or one of /kv/state with medium GPU",
                        fault.block.ToHex(), fault.group ? fmt::format(" of group {}", *fault.group) : ""));
      }
      return {};
    }
    case FaultKind::kPreempt: {
      const auto preempted = instance_->Preempt(rank);
      if (!preempted) return tl::unexpected<Error>(preempted.error());
      return {};
    }
    case FaultKind::kReset:
      return instance_->Reset(rank);
    case FaultKind::kRestart:
      return instance_->Restart(rank, {fault.first_number});
    case FaultKind::kDrop:
    case FaultKind::kDuplicate:
    case FaultKind::kDelay:
    case FaultKind::kUndecodable:
    case FaultKind::kOverflow:
      break;
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("now.kind: \"{}\" happens to a batch, give its number in a script; allowed: \"evict\", "
                               "\"preempt\", \"reset\" or \"restart\"",
                               ToString(fault.kind)));
}

}  // namespace kvwire::engine
