// SPDX-License-Identifier: Apache-2.0
#include "kv_events/transport/host_lookup.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include "kv_events/escape_text.h"

namespace kvwire {

Result<HostAddresses> ResolveHost(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failed != 0) {
    return MakeError(ErrorCode::kUnavailable,
                     fmt::format("{}: cannot be resolved: {}", ShortText(host), gai_strerror(failed)));
  }
  HostAddresses addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
      std::array<char, NI_MAXHOST> text{};
      if (entry->ai_family != family ||
          getnameinfo(entry->ai_addr, entry->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
        continue;
      }
      if (std::ranges::find(addresses, text.data()) == addresses.end()) addresses.emplace_back(text.data());
    }
  }
  freeaddrinfo(found);
  return addresses;
}

bool IsHostAddress(std::string_view host) {
  if (host.starts_with('[') && host.ends_with(']')) return true;
  in_addr four{};
  in6_addr six{};
  const std::string text(host);
  return inet_pton(AF_INET, text.c_str(), &four) == 1 || inet_pton(AF_INET6, text.c_str(), &six) == 1;
}

struct HostLookup::Question {
  std::string host;
  HostResolver resolver;
  Result<HostAddresses> answer = HostAddresses();  // read once it is answered
  std::atomic<bool> answered{false};
};

// Threads that come with questions and go when there are none.
class HostLookup::Threads {
 public:
  // Never destroyed: a thread that waits for a name server outlives everything.
  static Threads& Get() {
    static Threads* const threads = new Threads;
    return *threads;
  }

  std::shared_ptr<Question> Ask(const std::string& host, const HostResolver& resolver) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool shared = !resolver;
    if (shared) {
      std::erase_if(shared_, [](const auto& each) { return each.second.expired(); });
      const auto known = shared_.find(host);
      if (known != shared_.end()) {
        if (std::shared_ptr<Question> question = known->second.lock(); question && !question->answered) return question;
      }
    }
    auto question = std::make_shared<Question>();
    question->host = host;
    question->resolver = shared ? HostResolver(ResolveHost) : resolver;
    if (shared) shared_[host] = question;
    waiting_.push_back(question);
    if (running_ < kMostThreads) StartThread();
    return question;
  }

 private:
  static constexpr std::size_t kMostThreads = 16;

  // REQUIRES: mutex_ is held.
  void StartThread() {
    // The process's signals are not for this thread.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this] { Run(); }).detach();
      ++running_;
    } catch (const std::system_error& error) {
      if (running_ == 0) FailAll(fmt::format("no thread to look names up: {}", error.what()));
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void FailAll(const std::string& reason) {
    for (const auto& question : waiting_) {
      question->answer = MakeError(ErrorCode::kUnavailable, fmt::format("{}: {}", ShortText(question->host), reason));
      question->answered = true;
    }
    waiting_.clear();
  }

  void Run() {
    while (std::shared_ptr<Question> question = Next()) {
      try {
        question->answer = question->resolver(question->host);
      } catch (const std::exception& error) {
        question->answer =
            MakeError(ErrorCode::kUnavailable, fmt::format("{}: {}", ShortText(question->host), error.what()));
      }
      question->answered = true;
    }
  }

  // Null: the thread ends. What nobody waits for any more is left out.
  std::shared_ptr<Question> Next() {
    const std::lock_guard<std::mutex> lock(mutex_);
    while (!waiting_.empty()) {
      std::shared_ptr<Question> question = std::move(waiting_.front());
      waiting_.pop_front();
      if (question.use_count() > 1) return question;
    }
    --running_;
    return nullptr;
  }

  std::mutex mutex_;
  // Guarded by mutex_.
  std::deque<std::shared_ptr<Question>> waiting_;
  std::map<std::string, std::weak_ptr<Question>> shared_;
  std::size_t running_ = 0;
};

HostLookup::HostLookup(std::string host, HostResolver resolver)
    : host_(std::move(host)), resolver_(std::move(resolver)) {}

std::optional<Result<HostAddresses>> HostLookup::Poll() {
  if (!question_) question_ = Threads::Get().Ask(host_, resolver_);
  if (!question_->answered) return std::nullopt;
  return std::exchange(question_, nullptr)->answer;
}

EndpointLookup::EndpointLookup(Endpoint endpoint, HostResolver resolver) : endpoint_(std::move(endpoint)) {
  if (endpoint_.scheme != Endpoint::Scheme::kTcp || IsHostAddress(endpoint_.host)) return;
  lookup_.emplace(endpoint_.host, std::move(resolver));
}

std::optional<Endpoint> EndpointLookup::Poll() {
  if (!lookup_) return endpoint_;
  const std::optional<Result<HostAddresses>> answer = lookup_->Poll();
  if (!answer) return std::nullopt;
  failure_ = !*answer             ? answer->error().message
             : (*answer)->empty() ? fmt::format("{}: cannot be resolved: it has no address", ShortText(endpoint_.host))
                                  : std::string();
  if (!failure_.empty()) return std::nullopt;
  Endpoint found = endpoint_;
  const std::string& host = (*answer)->front();
  found.host = host.find(':') == std::string::npos ? host : fmt::format("[{}]", host);
  return found;
}

}  // namespace kvwire
