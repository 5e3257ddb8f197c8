// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/tap_against.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>
#include <httplib.h>
#include <nlohmann/json.hpp>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

constexpr std::size_t kRemembered = 65536;
constexpr MonotonicNanos kBetweenQuestions = 10'000'000;
constexpr MonotonicNanos kAfterProblem = 1'000'000'000;
constexpr time_t kTimeoutSeconds = 10;

Result<EngineTruth> ParseTruth(const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, false);
  const auto malformed = [] { return MakeError(ErrorCode::kUnavailable, "the answer is not a KV state"); };
  if (!json.is_object() || !json.contains("digest") || !json["digest"].is_string()) return malformed();
  EngineTruth truth;
  if (json.contains("batch") && json["batch"].is_number_unsigned()) truth.batch = json["batch"].get<SequenceNumber>();
  truth.digest = json["digest"].get<std::string>();
  if (json.contains("life") && json["life"].is_string()) truth.life = json["life"].get<std::string>();
  if (!json.contains("blocks")) return truth;
  if (!json["blocks"].is_array()) return malformed();
  truth.blocks.emplace();
  for (const auto& line : json["blocks"]) {
    if (!line.is_string()) return malformed();
    truth.blocks->push_back(line.get<std::string>());
  }
  return truth;
}

}  // namespace

Result<std::unique_ptr<TruthClient>> TruthClient::Create(const std::string& url, std::int64_t rank) {
  constexpr std::string_view kScheme = "http://";
  const auto refused = [&url] {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("--against \"{}\"; allowed: http://HOST:PORT of an engine that was started with --dev",
                                 ShortText(url)));
  };
  std::string_view rest(url);
  if (!rest.starts_with(kScheme)) return refused();
  rest.remove_prefix(kScheme.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return refused();
  const std::string_view digits = rest.substr(colon + 1);
  int port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port < 1 || port > 65535) return refused();
  return std::unique_ptr<TruthClient>(new TruthClient(std::string(rest.substr(0, colon)), port, rank));
}

TruthClient::TruthClient(std::string host, int port, std::int64_t rank)
    : host_(std::move(host)), port_(port), rank_(rank), thread_([this] { Loop(); }) {}

TruthClient::~TruthClient() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void TruthClient::Ask(Detail detail) {
  asked_ = true;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    question_ = detail;
  }
  changed_.notify_one();
}

std::optional<TruthClient::Answer> TruthClient::TryTake() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (answer_) asked_ = false;
  return std::exchange(answer_, std::nullopt);
}

void TruthClient::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || question_; });
    if (stopping_) return;
    const Detail detail = *std::exchange(question_, std::nullopt);
    lock.unlock();
    Answer answer = Fetch(detail);
    lock.lock();
    answer_ = std::move(answer);
  }
}

TruthClient::Answer TruthClient::Fetch(Detail detail) const {
  httplib::Client client(host_, port_);
  client.set_connection_timeout(kTimeoutSeconds);
  client.set_read_timeout(kTimeoutSeconds);
  const auto response =
      client.Get(fmt::format("/kv/state?rank={}&blocks={}", rank_, detail == Detail::kBlocks ? 1 : 0));
  Answer answer;
  if (!response) {
    answer.problem = fmt::format("{}:{} does not answer ({})", host_, port_, httplib::to_string(response.error()));
  } else if (response->status != 200) {
    answer.problem = fmt::format("{}:{} answers with status {}", host_, port_, response->status);
  } else if (Result<EngineTruth> truth = ParseTruth(response->body)) {
    answer.truth = *std::move(truth);
  } else {
    answer.problem = truth.error().message;
  }
  return answer;
}

AgainstEngine::AgainstEngine(std::unique_ptr<TruthClient> client, const HeldBlocks* held)
    : client_(std::move(client)), held_(held) {}

void AgainstEngine::OnApplied(SequenceNumber number) {
  remembered_.push_back({number, held_->digest().ToString()});
  if (remembered_.size() > kRemembered) remembered_.pop_front();
}

void AgainstEngine::OnRestart() {
  remembered_.clear();
  heard_restart_ = true;
}

std::optional<AgainstEngine::Disagreement> AgainstEngine::DoWork(MonotonicNanos now) {
  if (auto answer = client_->TryTake()) {
    next_question_ = now + kBetweenQuestions;
    if (!answer->truth) {
      ++counts_.unanswered;
      counts_.problem = std::move(answer->problem);
      next_question_ = now + kAfterProblem;
      wants_blocks_ = wants_blocks_ && !finishing_;
    } else if (answer->truth->batch) {
      pending_ = std::move(answer->truth);
    } else {
      wants_blocks_ = false;  // nothing was published: there is nothing to compare
    }
  }
  std::optional<Disagreement> disagreement;
  if (pending_ && !remembered_.empty() && remembered_.back().number >= *pending_->batch) disagreement = Compare();
  if (client_->idle() && !pending_ && now >= next_question_ && (wants_blocks_ || !finishing_)) {
    client_->Ask(wants_blocks_ ? TruthClient::Detail::kBlocks : TruthClient::Detail::kDigest);
  }
  return disagreement;
}

void AgainstEngine::Finish() {
  finishing_ = true;
  wants_blocks_ = true;
  next_question_ = 0;
}

std::optional<AgainstEngine::Disagreement> AgainstEngine::Compare() {
  const EngineTruth truth = *std::exchange(pending_, std::nullopt);
  const SequenceNumber number = *truth.batch;
  const auto found = std::lower_bound(remembered_.begin(), remembered_.end(), number,
                                      [](const Remembered& r, SequenceNumber n) { return r.number < n; });
  if (found == remembered_.end() || found->number != number) {
    ++counts_.missed;
    return std::nullopt;
  }
  if (compared_life_ && truth.life != *compared_life_ && !heard_restart_) {
    // Numbers of two lives say nothing about each other; the stream may still hear of the new one.
    ++counts_.missed;
    counts_.other_life = true;
    return std::nullopt;
  }
  compared_life_ = truth.life;
  heard_restart_ = counts_.other_life = false;
  if (found->digest == truth.digest) {
    ++counts_.agreed;
    if (truth.blocks) wants_blocks_ = false;
    return std::nullopt;
  }
  // Our own set is only known as of now.
  const bool has_blocks = truth.blocks && found + 1 == remembered_.end();
  ++counts_.disagreed;
  Disagreement disagreement{number, fmt::format("after message {} the engine holds {}, the stream says {}", number,
                                                EscapeText(truth.digest), found->digest)};
  if (has_blocks) {
    wants_blocks_ = false;
    explained_ = true;
    disagreement.what += "; first difference: " + FirstDifference(*truth.blocks);
    return disagreement;
  }
  if (explained_) return std::nullopt;
  // Said once, and explained as soon as both ends stand at one number.
  const bool first = counts_.disagreed == 1;
  wants_blocks_ = true;
  next_question_ = 0;
  if (!first) return std::nullopt;
  return disagreement;
}

std::string AgainstEngine::FirstDifference(const std::vector<std::string>& blocks) const {
  std::vector<std::string> ours;
  held_->Dump([&ours](std::string_view line) { ours.emplace_back(line); });
  const auto [mine, theirs] = std::mismatch(ours.begin(), ours.end(), blocks.begin(), blocks.end());
  if (mine == ours.end() && theirs == blocks.end()) return "none: the sets are equal";
  if (mine == ours.end() || (theirs != blocks.end() && *theirs < *mine)) {
    return fmt::format("the engine holds {}, the stream does not", EscapeText(*theirs));
  }
  return fmt::format("the stream holds {}, the engine does not", *mine);
}

}  // namespace kvwire::engine
