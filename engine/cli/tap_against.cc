// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/tap_against.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <future>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

using SteadyClock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr std::size_t kRemembered = 65536;
constexpr MonotonicNanos kBetweenQuestions = 10'000'000;
constexpr MonotonicNanos kAfterProblem = 1'000'000'000;
// So long a stream may take to tell of a restart that its engine tells of.
constexpr MonotonicNanos kSettled = 200'000'000;
// A longer pause between two looks is no time in which the stream could tell.
constexpr MonotonicNanos kLongestLook = 50'000'000;

constexpr std::chrono::seconds kExchangeTime(10);
constexpr std::chrono::milliseconds kCancelLook(20);
constexpr std::size_t kMaxHead = 65536;
constexpr std::size_t kMaxBody = std::size_t{64} << 20;
constexpr std::size_t kMaxDepth = 32;
constexpr std::string_view kLineEnd = "\r\n";

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

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

std::vector<SocketAddress> LookUp(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  std::vector<SocketAddress> addresses;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    SocketAddress address;
    address.size = std::min<socklen_t>(info->ai_addrlen, sizeof(address.storage));
    std::memcpy(&address.storage, info->ai_addr, address.size);
    addresses.push_back(address);
  }
  freeaddrinfo(found);
  return addresses;
}

class Socket {
 public:
  explicit Socket(int family) : fd_(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const noexcept { return fd_; }

 private:
  const int fd_;
};

// The head of an answer, as far as it matters.
struct Head {
  int status = 0;
  std::optional<std::size_t> length;  // of the body; else the connection's end is its end
};

template <class Number>
bool ParseNumber(std::string_view text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

// Nothing if it is none, or if the body is coded: nobody asked for that.
std::optional<Head> ParseHead(std::string_view text) {
  constexpr std::string_view kProtocol = "HTTP/1.";
  const auto next_line = [&text] {
    const std::size_t end = std::min(text.find(kLineEnd), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + kLineEnd.size(), text.size()));
    return line;
  };
  Head head;
  std::string_view line = next_line();
  // "HTTP/1.1 200 OK"
  if (!line.starts_with(kProtocol) || line.size() < 12 || line[8] != ' ' ||
      !ParseNumber(line.substr(9, 3), &head.status)) {
    return std::nullopt;
  }
  while (!(line = next_line()).empty()) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
    if (name == "transfer-encoding") return std::nullopt;
    if (name != "content-length") continue;
    line.remove_prefix(colon + 1);
    while (line.starts_with(' ')) line.remove_prefix(1);
    while (line.ends_with(' ')) line.remove_suffix(1);
    std::size_t length = 0;
    if (!ParseNumber(line, &length) || length != head.length.value_or(length)) return std::nullopt;
    head.length = length;
  }
  return head;
}

struct Address {
  std::string host;       // without brackets
  std::string authority;  // as given
  int port = 0;
};

std::optional<Address> ParseUrl(std::string_view url) {
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
  Address address{std::string(host), std::string(url), 0};
  if (!ParseNumber(url.substr(colon + 1), &address.port) || address.port < 1 || address.port > 65535) {
    return std::nullopt;
  }
  return address;
}

}  // namespace

// Fetches from one address, over a connection for each question, in HTTP/1.0: there a body has no chunks.
// Threads: one; Cancel from any.
class TruthClient::Getter {
 public:
  explicit Getter(Address address) : address_(std::move(address)) {}

  // Ends a running and every later Get.
  void Cancel() noexcept { cancelled_.store(true); }

  // The body. Errors: say what was wrong, with the address.
  Result<std::string> Get(const std::string& target) {
    end_ = SteadyClock::now() + kExchangeTime;
    const std::unique_ptr<Socket> socket = Connect();
    if (!socket) return NoAnswer(reason_ == 0 ? "the name is not known" : std::strerror(reason_));
    const std::string request =
        fmt::format("GET {} HTTP/1.0\r\nHost: {}\r\nAccept: application/json\r\n\r\n", target, address_.authority);
    if (!Send(socket->fd(), request)) return NoAnswer("the connection ended");
    return Receive(socket->fd());
  }

 private:
  enum class Input : std::uint8_t { kBytes, kEnd, kNone };

  tl::unexpected<Error> Problem(std::string_view what) const {
    return MakeError(ErrorCode::kUnavailable, fmt::format("{} {}", address_.authority, what));
  }
  tl::unexpected<Error> NoAnswer(std::string_view why) const {
    return Over(end_) ? Problem(fmt::format("does not answer within {} s", kExchangeTime.count()))
                      : Problem(fmt::format("does not answer ({})", why));
  }

  bool Over(SteadyClock::time_point end) const { return cancelled_.load() || SteadyClock::now() >= end; }
  // The time until `end`, but no longer than a cancel may wait.
  std::chrono::milliseconds Slice(SteadyClock::time_point end) const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - SteadyClock::now());
    return std::clamp(left, std::chrono::milliseconds(0), kCancelLook);
  }
  bool Await(int fd, short events, SteadyClock::time_point end) const {
    while (!Over(end)) {
      pollfd polled{fd, events, 0};
      if (poll(&polled, 1, static_cast<int>(Slice(end).count())) > 0) return true;
    }
    return false;
  }

  // A look-up cannot be ended, so it has a thread that nobody waits for; there is one at most.
  void FindAddresses() {
    if (addresses_.empty()) addresses_ = LookUp(address_.host, address_.port, AI_NUMERICHOST);
    if (!addresses_.empty()) return;
    if (!looked_up_.valid()) {
      std::promise<std::vector<SocketAddress>> promise;
      looked_up_ = promise.get_future();
      try {
        std::thread([promise = std::move(promise), host = address_.host, port = address_.port]() mutable {
          promise.set_value(LookUp(host, port, 0));
        }).detach();
      } catch (const std::system_error&) {
        looked_up_ = {};
        return;
      }
    }
    while (!Over(end_)) {
      if (looked_up_.wait_for(Slice(end_)) != std::future_status::ready) continue;
      addresses_ = looked_up_.get();
      return;
    }
  }

  // Failure leaves the reason in errno.
  bool ConnectTo(const SocketAddress& address, int fd, SteadyClock::time_point end) const {
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0) return true;
    if (errno != EINPROGRESS) return false;
    if (!Await(fd, POLLOUT, end)) {
      errno = ETIMEDOUT;
      return false;
    }
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return false;
    errno = error;
    return error == 0;
  }

  // Null leaves the reason.
  std::unique_ptr<Socket> Connect() {
    reason_ = 0;
    FindAddresses();
    for (std::size_t i = 0; i < addresses_.size() && !Over(end_); ++i) {
      const SocketAddress& address = addresses_[i];
      // None takes the time of those behind it.
      const auto now = SteadyClock::now();
      const auto end = now + (end_ - now) / static_cast<int>(addresses_.size() - i);
      auto socket = std::make_unique<Socket>(address.storage.ss_family);
      if (socket->fd() >= 0 && ConnectTo(address, socket->fd(), end)) return socket;
      reason_ = errno;
    }
    addresses_.clear();
    return nullptr;
  }

  bool Send(int fd, std::string_view bytes) const {
    while (!bytes.empty()) {
      if (!Await(fd, POLLOUT, end_)) return false;
      const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  Input ReceiveSome(int fd, std::string* bytes) const {
    std::array<char, 65536> buffer;
    while (Await(fd, POLLIN, end_)) {
      const ssize_t got = recv(fd, buffer.data(), buffer.size(), 0);
      if (got > 0) {
        bytes->append(buffer.data(), static_cast<std::size_t>(got));
        return Input::kBytes;
      }
      if (got == 0) return Input::kEnd;
      if (errno != EAGAIN && errno != EINTR) return Input::kNone;
    }
    return Input::kNone;
  }

  Result<std::string> Receive(int fd) const {
    constexpr std::string_view kHeadEnd = "\r\n\r\n";
    std::string bytes;
    std::size_t head_size = std::string::npos;
    for (std::size_t seen = 0; (head_size = bytes.find(kHeadEnd, seen)) == std::string::npos;) {
      if (bytes.size() > kMaxHead) return Problem(fmt::format("answers with a head of more than {} bytes", kMaxHead));
      seen = bytes.size() - std::min(bytes.size(), kHeadEnd.size());
      if (ReceiveSome(fd, &bytes) != Input::kBytes) return NoAnswer("the connection ended");
    }
    const std::optional<Head> head = ParseHead(std::string_view(bytes).substr(0, head_size + 2));
    if (!head) return Problem("says what is no HTTP answer");
    if (head->status != 200) return Problem(fmt::format("answers with status {}", head->status));
    bytes.erase(0, head_size + kHeadEnd.size());
    const auto too_large = [this] { return Problem(fmt::format("answers with more than {} bytes", kMaxBody)); };
    if (head->length.value_or(0) > kMaxBody) return too_large();
    while (!head->length || bytes.size() < *head->length) {
      if (bytes.size() > kMaxBody) return too_large();
      const Input input = ReceiveSome(fd, &bytes);
      if (input == Input::kEnd && !head->length) break;
      if (input != Input::kBytes) return NoAnswer("the connection ended");
    }
    if (head->length) bytes.resize(*head->length);
    return bytes;
  }

  const Address address_;
  std::atomic<bool> cancelled_{false};
  SteadyClock::time_point end_;  // of the running exchange
  int reason_ = 0;               // why there is no connection, as errno; 0: no address
  std::vector<SocketAddress> addresses_;
  std::future<std::vector<SocketAddress>> looked_up_;
};

Result<std::unique_ptr<TruthClient>> TruthClient::Create(const std::string& url, std::int64_t rank) {
  std::optional<Address> address = ParseUrl(url);
  if (!address) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("--against \"{}\"; allowed: http://HOST:PORT of an engine that was started with --dev",
                                 ShortText(url)));
  }
  return std::unique_ptr<TruthClient>(new TruthClient(std::make_unique<Getter>(*std::move(address)), rank));
}

TruthClient::TruthClient(std::unique_ptr<Getter> getter, std::int64_t rank)
    : getter_(std::move(getter)), rank_(rank), thread_([this] { Loop(); }) {}

TruthClient::~TruthClient() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  getter_->Cancel();
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

TruthClient::Answer TruthClient::Fetch(Detail detail) {
  Answer answer;
  const Result<std::string> body =
      getter_->Get(fmt::format("/kv/state?rank={}&blocks={}", rank_, detail == Detail::kBlocks ? 1 : 0));
  if (!body) {
    answer.problem = body.error().message;
  } else if (Result<EngineTruth> truth = ParseTruth(*body)) {
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
