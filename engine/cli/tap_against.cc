// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/tap_against.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/http/caller_scope.h"
#include "engine/http/http_call.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kRemembered = 65536;
constexpr MonotonicNanos kBetweenQuestions = 10'000'000;
constexpr MonotonicNanos kAfterProblem = 1'000'000'000;
// So long a stream may take to tell of a restart that its engine tells of.
constexpr MonotonicNanos kSettled = 200'000'000;
// A longer pause between two looks is no time in which the stream could tell.
constexpr MonotonicNanos kLongestLook = 50'000'000;

constexpr std::chrono::seconds kExchangeTime(10);
constexpr std::size_t kMaxBody = std::size_t{64} << 20;
constexpr std::size_t kMaxDepth = 32;

// A line of a state ends with a blank and the last 64 bits of a hash.
bool IsStateLine(std::string_view line) {
  constexpr std::size_t kHashDigits = 16;
  if (line.size() < kHashDigits + 2 || line[line.size() - kHashDigits - 1] != ' ') return false;
  return std::ranges::all_of(line.substr(line.size() - kHashDigits),
                             [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// Reads an engine's state without building the document: memory is bounded by what is kept of it. Keys that are not
// known are passed over.
class StateReader final : public nlohmann::json_sax<Json> {
 public:
  // Whether the text was a state.
  bool Complete() const noexcept { return has_digest_; }
  EngineTruth& truth() noexcept { return truth_; }

  bool null() override { return Scalar(key_ == "batch" || key_ == "life"); }
  bool boolean(bool /*value*/) override { return Scalar(false); }
  bool number_integer(number_integer_t /*value*/) override { return Scalar(false); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return Scalar(false); }
  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ == 1 && key_ == "batch") truth_.batch = value;
    return Scalar(key_ == "batch");
  }
  bool string(string_t& value) override {
    if (depth_ == 1 && key_ == "digest") {
      has_digest_ = true;
      truth_.digest = std::move(value);
    } else if (depth_ == 1 && key_ == "life") {
      truth_.life = std::move(value);
    } else if (InBlocks()) {
      if (depth_ != 2 || !IsStateLine(value)) return false;
      truth_.blocks->push_back(std::move(value));
      return true;
    }
    return Scalar(key_ == "digest" || key_ == "life");
  }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*size*/) override { return Open(false); }
  bool end_object() override { return Close(); }
  bool key(string_t& value) override {
    if (depth_ == 1) key_ = std::move(value);
    return true;
  }
  bool start_array(std::size_t /*size*/) override {
    if (depth_ == 1 && key_ == "blocks" && !truth_.blocks) truth_.blocks.emplace();
    return depth_ > 0 && Open(key_ == "blocks");
  }
  bool end_array() override { return Close(); }
  bool parse_error(std::size_t /*at*/, const std::string& /*token*/, const Json::exception& /*error*/) override {
    return false;
  }

 private:
  static bool IsKnown(std::string_view key) {
    return key == "batch" || key == "digest" || key == "life" || key == "blocks";
  }
  bool InBlocks() const { return depth_ >= 2 && key_ == "blocks"; }
  // Known keys have values of their own kind.
  bool Scalar(bool fits) const { return depth_ > 0 && (fits || !IsKnown(key_)); }
  bool Open(bool fits) {
    const bool allowed = depth_ == 0 || !IsKnown(key_) || (fits && depth_ == 1);
    return allowed && ++depth_ <= kMaxDepth;
  }
  bool Close() {
    --depth_;
    return true;
  }

  EngineTruth truth_;
  std::string key_;  // of the outermost object
  std::size_t depth_ = 0;
  bool has_digest_ = false;
};

Result<EngineTruth> ParseTruth(const std::string& body) {
  StateReader reader;
  if (Json::sax_parse(body, &reader) && reader.Complete()) return std::move(reader.truth());
  return MakeError(ErrorCode::kUnavailable, "the answer is not a KV state");
}

// The questions' server; no method and no path.
std::optional<HttpCall> ParseUrl(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return std::nullopt;
  url.remove_prefix(kScheme.size());
  if (url.ends_with('/')) url.remove_suffix(1);
  const auto in_authority = [](char c) {
    return c > ' ' && c < '\x7f' && c != '/' && c != '?' && c != '#' && c != '@';
  };
  if (!std::ranges::all_of(url, in_authority)) return std::nullopt;
  const std::size_t colon = url.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = url.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || host.find_first_of(bracketed ? "[]" : "[]:") != std::string_view::npos) return std::nullopt;
  HttpCall call;
  call.host = host;
  const std::string_view port = url.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), call.port);
  if (error != std::errc() || end != port.data() + port.size() || call.port == 0) return std::nullopt;
  return call;
}

}  // namespace

Result<std::unique_ptr<TruthClient>> TruthClient::Create(const std::string& url, std::int64_t rank) {
  std::optional<HttpCall> call = ParseUrl(url);
  if (!call) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("--against \"{}\"; allowed: http://HOST:PORT of an engine that was started with --dev",
                                 ShortText(url)));
  }
  call->method = HttpMethod::kGet;
  call->connect_timeout = kExchangeTime;
  call->reply_timeout = kExchangeTime;
  call->max_reply_bytes = kMaxBody;
  return std::unique_ptr<TruthClient>(new TruthClient(*std::move(call), rank));
}

TruthClient::TruthClient(HttpCall call, std::int64_t rank)
    : call_(std::move(call)), rank_(rank), thread_([this] { Loop(); }) {}

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
  const CallerScope scope([this] { return stopping_.load(); });
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

TruthClient::Answer TruthClient::Fetch(Detail detail) {
  HttpCall call = call_;
  call.path = fmt::format("/kv/state?rank={}&blocks={}", rank_, detail == Detail::kBlocks ? 1 : 0);
  const tl::expected<HttpReply, std::string> reply = Call(call);
  const auto problem = [&call](std::string_view why) {
    return Answer{std::nullopt, fmt::format("the engine at {} port {}: {}", call.host, call.port, why)};
  };
  if (!reply) return problem(reply.error());
  if (reply->status != 200) return problem(fmt::format("status {}: {}", reply->status, ShortText(reply->body, 200)));
  Result<EngineTruth> truth = ParseTruth(reply->body);
  if (!truth) return problem(truth.error().message);
  return Answer{*std::move(truth), {}};
}

AgainstEngine::AgainstEngine(std::unique_ptr<TruthClient> client, const HeldBlocks* held)
    : client_(std::move(client)), held_(held) {}

void AgainstEngine::OnApplied(SequenceNumber number, std::optional<std::int64_t> rank) {
  if (rank) rank_ = rank;
  remembered_.push_back({number, held_->digest().ToString()});
  if (remembered_.size() > kRemembered) remembered_.pop_front();
}

void AgainstEngine::OnRestart() {
  remembered_.clear();
  Acquit();
  if (pending_) ++counts_.missed;
  pending_.reset();
  question_void_ = !client_->idle();
  life_.reset();
  not_this_life_.reset();
  counts_.other_life = false;
}

std::optional<AgainstEngine::Disagreement> AgainstEngine::DoWork(MonotonicNanos now) {
  attended_ += std::clamp<MonotonicNanos>(now - last_look_, 0, kLongestLook);
  last_look_ = now;
  if (auto answer = client_->TryTake()) {
    next_question_ = now + (answer->truth ? kBetweenQuestions : kAfterProblem);
    Take(*std::move(answer));
  }
  if (pending_ && !remembered_.empty() && remembered_.back().number >= *pending_->batch) Compare();
  // What waits for the stream does not keep a suspicion from being judged.
  if (client_->idle() && (!pending_ || suspected()) && now >= next_question_ &&
      (wants_blocks_ || suspected() || !finishing_)) {
    if (pending_) ++counts_.missed;
    pending_.reset();
    asked_at_ = remembered_.empty() ? std::nullopt : std::optional(remembered_.back().number);
    question_void_ = false;
    client_->Ask(wants_blocks_ ? TruthClient::Detail::kBlocks : TruthClient::Detail::kDigest);
  }
  if (proven_.empty()) return std::nullopt;
  Disagreement disagreement = std::move(proven_.front());
  proven_.pop_front();
  return disagreement;
}

void AgainstEngine::Finish() {
  finishing_ = true;
  wants_blocks_ = true;
  next_question_ = 0;
}

void AgainstEngine::Take(TruthClient::Answer answer) {
  if (!answer.truth) {
    ++counts_.unanswered;
    counts_.problem = std::move(answer.problem);
    wants_blocks_ = wants_blocks_ && !finishing_;
    return;
  }
  if (question_void_) {
    ++counts_.missed;
    return;
  }
  EngineTruth truth = *std::move(answer.truth);
  if (!truth.batch) {  // nothing was published: there is nothing to compare
    if (life_ && truth.life != *life_) {
      counts_.other_life = true;
      Acquit();
    }
    wants_blocks_ = false;
    return;
  }
  if (!CanBeOfThisLife(truth)) {
    ++counts_.missed;
    counts_.other_life = true;
    Acquit();
    return;
  }
  if (suspected() && attended_ - life_since_ >= kSettled) {
    Prove();
    if (finishing_ && !wants_blocks_) return;  // asked for as a witness only
  }
  pending_ = std::move(truth);
}

bool AgainstEngine::CanBeOfThisLife(const EngineTruth& truth) {
  if (asked_at_ && *truth.batch < *asked_at_) {
    not_this_life_ = truth.life;
    if (life_ == truth.life) life_.reset();
  }
  return truth.life != not_this_life_ && truth.life == life_.value_or(truth.life);
}

void AgainstEngine::Compare() {
  const EngineTruth truth = *std::exchange(pending_, std::nullopt);
  const auto found = std::lower_bound(remembered_.begin(), remembered_.end(), *truth.batch,
                                      [](const Remembered& r, SequenceNumber n) { return r.number < n; });
  if (found == remembered_.end() || found->number != *truth.batch) {
    ++counts_.missed;
    return;
  }
  if (!life_) {
    life_ = truth.life;
    life_since_ = attended_;
  }
  counts_.other_life = false;
  if (found->digest != truth.digest) {
    Suspect(truth, *found);
    return;
  }
  ++counts_.agreed;
  if (truth.blocks) wants_blocks_ = false;
}

void AgainstEngine::Suspect(const EngineTruth& truth, const Remembered& ours) {
  const bool first = !suspected() && counts_.disagreed == 0;
  ++suspicion_.comparisons;
  Disagreement disagreement{ours.number, fmt::format("after message {} the engine holds {}, the stream says {}",
                                                     ours.number, EscapeText(truth.digest), ours.digest)};
  if (const std::string ranks = WhyRanksDiffer(); !ranks.empty()) disagreement.what += "; " + ranks;
  // Our own set is only known as of now.
  if (truth.blocks && ours.number == remembered_.back().number) {
    wants_blocks_ = false;
    suspicion_.explained = true;
    disagreement.what += "; first difference: " + FirstDifference(*truth.blocks);
    suspicion_.to_say.push_back(std::move(disagreement));
    return;
  }
  if (explained_ || suspicion_.explained) return;
  // Said once, and explained as soon as both ends stand at one number.
  wants_blocks_ = true;
  next_question_ = 0;
  if (first) suspicion_.to_say.push_back(std::move(disagreement));
}

void AgainstEngine::Prove() {
  counts_.disagreed += suspicion_.comparisons;
  explained_ = explained_ || suspicion_.explained;
  for (Disagreement& disagreement : suspicion_.to_say) proven_.push_back(std::move(disagreement));
  suspicion_ = {};
}

void AgainstEngine::Acquit() {
  if (suspected()) wants_blocks_ = finishing_;
  counts_.missed += suspicion_.comparisons;
  suspicion_ = {};
}

std::string AgainstEngine::WhyUnfinished() const {
  if (finished()) return {};
  constexpr std::string_view kMissing = "the last comparison is missing";
  if (suspected() || !proven_.empty()) {
    return fmt::format("a disagreement was not confirmed by a second answer: {}", kMissing);
  }
  if (pending_) return fmt::format("the engine speaks of a message that did not come: {}", kMissing);
  return fmt::format("the engine did not answer in time: {}", kMissing);
}

std::string AgainstEngine::WhyRanksDiffer() const {
  if (!rank_ || *rank_ == client_->rank()) return {};
  return fmt::format("the stream is of data-parallel rank {}, the engine was asked for rank {} (--against-rank)",
                     *rank_, client_->rank());
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
