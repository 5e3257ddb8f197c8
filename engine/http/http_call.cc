// SPDX-License-Identifier: Apache-2.0
#include "engine/http/http_call.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include <curl/curl.h>
#include <fmt/format.h>

#include "engine/http/caller_scope.h"
#include "engine/http/http_head.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

constexpr std::size_t kMaxHeadBytes = std::size_t{64} << 10;
constexpr int kLookMillis = 50;
constexpr std::string_view kNobodyWaits = "nobody waits for it any more";

using EasyHandle = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;
using MultiHandle = std::unique_ptr<CURLM, decltype(&curl_multi_cleanup)>;
using HeaderList = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;

// The status of "HTTP/1.1 200 OK"; 0 for anything else.
int StatusOf(std::string_view line) {
  constexpr std::size_t kVersionBytes = 9;
  const bool is_http = line.starts_with("HTTP/1.1 ") || line.starts_with("HTTP/1.0 ");
  if (!is_http || line.size() < kVersionBytes + 3) return 0;
  int status = 0;
  for (const char c : line.substr(kVersionBytes, 3)) {
    if (c < '0' || c > '9') return 0;
    status = status * 10 + (c - '0');
  }
  const bool ends = line.size() == kVersionBytes + 3 || line[kVersionBytes + 3] == ' ';
  return ends && status >= 100 ? status : 0;
}

// Takes what libcurl receives, as far as it is allowed. After a fault it takes nothing more.
class Receiver {
 public:
  explicit Receiver(std::size_t max_body) : max_body_(max_body) {}

  bool TakeHeadLine(std::string_view line);
  bool TakeBody(std::string_view bytes);
  // All that comes after the head, chunks' lengths included.
  void Count(std::size_t bytes);

  bool has_head() const noexcept { return has_head_; }
  const std::string& fault() const noexcept { return fault_; }
  HttpReply& reply() noexcept { return reply_; }

  std::string BodyFault(std::string_view why) const {
    return fmt::format("status {}, and the reply's body cannot be read: {}", reply_.status, why);
  }

 private:
  bool TakeHead(const HttpHead& head);
  bool Refuse(std::string fault) {
    if (fault_.empty()) fault_ = std::move(fault);
    return false;
  }
  bool RefuseBodyAbove(std::size_t bytes) {
    return Refuse(BodyFault(fmt::format("it is larger than {} bytes", bytes)));
  }

  const std::size_t max_body_;
  std::size_t head_bytes_ = 0;  // of all heads together, those before the final one included, and the trailer
  std::size_t raw_bytes_ = 0;
  HttpHeadParser parser_ = HttpHeadParser::OfMessage();
  bool has_head_ = false;  // the final one
  HttpReply reply_;
  std::string fault_;
};

bool Receiver::TakeHeadLine(std::string_view line) {
  head_bytes_ += line.size();
  if (head_bytes_ > kMaxHeadBytes) {
    const std::string why = fmt::format("its head is larger than {} bytes", kMaxHeadBytes);
    return Refuse(has_head_ ? BodyFault(why + " with the trailer") : "no reply: " + why);
  }
  if (has_head_) return true;  // a trailer
  for (const char byte : line) {
    switch (parser_.Take(byte)) {
      case HttpHeadParser::State::kMore:
        break;
      case HttpHeadParser::State::kComplete:
        return TakeHead(std::exchange(parser_, HttpHeadParser::OfMessage()).head());
      case HttpHeadParser::State::kFaulty:
        return Refuse(fmt::format("no reply: {}", parser_.fault()));
    }
  }
  return true;
}

bool Receiver::TakeHead(const HttpHead& head) {
  reply_.status = StatusOf(head.start_line);
  if (reply_.status == 0) {
    return Refuse(
        fmt::format("the reply begins with \"{}\", expected HTTP/1.1 and a status", ShortText(head.start_line)));
  }
  if (reply_.status < 200) return true;
  has_head_ = true;
  if (reply_.status == 204 || reply_.status == 304) return true;  // without a body
  const std::string packing = FieldOf(head.fields, "content-encoding").value_or("");
  if (!packing.empty() && LowerCase(packing) != "identity") {
    return Refuse(fmt::format("the reply has Content-Encoding \"{}\", expected none", ShortText(packing)));
  }
  const auto framing = FramingOf(head.fields);
  if (!framing) return Refuse(fmt::format("the reply's {}", framing.error().message));
  const bool too_large = *framing && (*framing)->length > max_body_;
  return !too_large || RefuseBodyAbove(max_body_);
}

bool Receiver::TakeBody(std::string_view bytes) {
  if (!fault_.empty()) return false;
  if (bytes.size() > max_body_ - reply_.body.size()) return RefuseBodyAbove(max_body_);
  reply_.body.append(bytes);
  return true;
}

void Receiver::Count(std::size_t bytes) {
  raw_bytes_ += bytes;
  if (raw_bytes_ / 2 > max_body_) RefuseBodyAbove(2 * max_body_);
}

std::size_t OnHeadLine(char* data, std::size_t size, std::size_t count, void* receiver) {
  return static_cast<Receiver*>(receiver)->TakeHeadLine({data, size * count}) ? size * count : 0;
}

std::size_t OnBody(char* data, std::size_t size, std::size_t count, void* receiver) {
  return static_cast<Receiver*>(receiver)->TakeBody({data, size * count}) ? size * count : 0;
}

int OnTrace(CURL* /*easy*/, curl_infotype type, char* /*data*/, std::size_t size, void* receiver) {
  if (type == CURLINFO_DATA_IN) static_cast<Receiver*>(receiver)->Count(size);
  return 0;
}

// One request and its reply.
class Exchange {
 public:
  explicit Exchange(const HttpCall& call) : call_(call), receiver_(call.max_reply_bytes) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  tl::expected<HttpReply, std::string> Run();

 private:
  template <class Value>
  void Set(CURLoption option, Value value) {
    if (set_ == CURLE_OK) set_ = curl_easy_setopt(easy_.get(), option, value);
  }
  void AddHeader(const std::string& line) {
    curl_slist* longer = curl_slist_append(headers_.get(), line.c_str());
    if (longer == nullptr) set_ = CURLE_OUT_OF_MEMORY;
    if (longer != nullptr && !headers_) headers_.reset(longer);
  }
  void Configure();
  void SetRequest();
  CURLcode Drive();
  std::string WhatFailed(CURLcode code) const;
  std::string WhyFailed(CURLcode code) const;
  curl_off_t Number(CURLINFO info) const;

  const HttpCall& call_;
  Receiver receiver_;
  bool gone_ = false;
  std::array<char, CURL_ERROR_SIZE> problem_{};
  CURLcode set_ = CURLE_OK;
  HeaderList headers_{nullptr, curl_slist_free_all};
  // The transfer ends before what drives it.
  const MultiHandle multi_{curl_multi_init(), curl_multi_cleanup};
  const EasyHandle easy_{curl_easy_init(), curl_easy_cleanup};
};

void Exchange::Configure() {
  SetRequest();
  Set(CURLOPT_PROTOCOLS_STR, "http");
  Set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  Set(CURLOPT_HTTP09_ALLOWED, 0L);
  Set(CURLOPT_FOLLOWLOCATION, 0L);
  Set(CURLOPT_PROXY, "");
  Set(CURLOPT_FORBID_REUSE, 1L);
  Set(CURLOPT_TCP_NODELAY, 1L);
  Set(CURLOPT_NOSIGNAL, 1L);
  // 0 would be no limit.
  Set(CURLOPT_CONNECTTIMEOUT_MS, std::max(1L, static_cast<long>(call_.connect_timeout.count())));
  Set(CURLOPT_TIMEOUT_MS, std::max(1L, static_cast<long>(call_.reply_timeout.count())));
  // Who gives up a look-up does not wait for its end.
  Set(CURLOPT_QUICK_EXIT, 1L);
  Set(CURLOPT_HEADERFUNCTION, OnHeadLine);
  Set(CURLOPT_HEADERDATA, &receiver_);
  Set(CURLOPT_WRITEFUNCTION, OnBody);
  Set(CURLOPT_WRITEDATA, &receiver_);
  // The trace alone tells of chunks' lengths.
  Set(CURLOPT_VERBOSE, 1L);
  Set(CURLOPT_DEBUGFUNCTION, OnTrace);
  Set(CURLOPT_DEBUGDATA, &receiver_);
  Set(CURLOPT_ERRORBUFFER, problem_.data());
}

void Exchange::SetRequest() {
  const bool is_v6 = call_.host.find(':') != std::string::npos;
  const std::string url = fmt::format("http://{}{}{}:{}{}", is_v6 ? "[" : "", call_.host, is_v6 ? "]" : "", call_.port,
                                      call_.path.empty() ? "/" : call_.path);
  Set(CURLOPT_URL, url.c_str());
  Set(CURLOPT_PATH_AS_IS, 1L);
  Set(CURLOPT_USERAGENT, "kvwire");
  AddHeader("Connection: close");
  // As an option it would also unpack what came packed.
  AddHeader("Accept-Encoding: identity");
  if (call_.method == HttpMethod::kPost) {
    Set(CURLOPT_POST, 1L);
    Set(CURLOPT_POSTFIELDS, call_.body.c_str());
    Set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call_.body.size()));
    AddHeader(fmt::format("Content-Type: {}", call_.content_type));
    AddHeader("Expect:");  // none
  }
  Set(CURLOPT_HTTPHEADER, headers_.get());
  // A name server that does not answer is not waited for once the caller has gone.
  Set(CURLOPT_QUICK_EXIT, 1L);
}

tl::expected<HttpReply, std::string> Exchange::Run() {
  const auto failed = [](std::string why) { return tl::unexpected<std::string>(std::move(why)); };
  if (!multi_ || !easy_) return failed("no memory for a request");
  Configure();
  if (set_ != CURLE_OK) return failed(fmt::format("the request cannot be made: {}", curl_easy_strerror(set_)));
  const CURLcode code = Drive();
  if (!receiver_.fault().empty()) return failed(receiver_.fault());
  if (code != CURLE_OK || gone_) return failed(WhatFailed(code));
  if (!receiver_.has_head()) return failed("no reply: the server closed the connection");
  return std::move(receiver_.reply());
}

CURLcode Exchange::Drive() {
  if (curl_multi_add_handle(multi_.get(), easy_.get()) != CURLM_OK) return CURLE_FAILED_INIT;
  while (true) {
    int running = 0;
    if (curl_multi_perform(multi_.get(), &running) != CURLM_OK) return CURLE_FAILED_INIT;
    if (running == 0 || !receiver_.fault().empty()) break;
    gone_ = CallerScope::Gone();
    if (gone_) break;
    if (curl_multi_poll(multi_.get(), nullptr, 0, kLookMillis, nullptr) != CURLM_OK) return CURLE_FAILED_INIT;
  }
  int left = 0;
  const CURLMsg* message = curl_multi_info_read(multi_.get(), &left);
  return message != nullptr ? message->data.result : CURLE_OK;
}

curl_off_t Exchange::Number(CURLINFO info) const {
  curl_off_t number = 0;
  curl_easy_getinfo(easy_.get(), info, &number);
  return number;
}

std::string Exchange::WhatFailed(CURLcode code) const {
  const std::string why = WhyFailed(code);
  if (receiver_.has_head()) return receiver_.BodyFault(why);
  if (Number(CURLINFO_CONNECT_TIME_T) == 0) return fmt::format("cannot connect: {}", why);
  const bool sent =
      call_.method == HttpMethod::kGet || Number(CURLINFO_SIZE_UPLOAD_T) == static_cast<curl_off_t>(call_.body.size());
  return fmt::format("{}: {}", sent ? "no reply" : "cannot send the request", why);
}

std::string Exchange::WhyFailed(CURLcode code) const {
  if (gone_) return std::string(kNobodyWaits);
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      return "the time is over";
    case CURLE_OUT_OF_MEMORY:  // what libcurl also says of a line without an end
      return fmt::format("a line of it is larger than {} bytes, or there is no memory", kMaxHeadBytes);
#if LIBCURL_VERSION_NUM >= 0x080600
    case CURLE_TOO_LARGE:
      return fmt::format("a line of it is larger than {} bytes", kMaxHeadBytes);
#endif
    case CURLE_GOT_NOTHING:
      return "the server closed the connection";
    case CURLE_PARTIAL_FILE:
      return "it ends too early";
    case CURLE_COULDNT_CONNECT: {
      long reason = 0;
      curl_easy_getinfo(easy_.get(), CURLINFO_OS_ERRNO, &reason);
      if (reason != 0) return std::strerror(static_cast<int>(reason));
      break;
    }
    default:
      break;
  }
  return problem_[0] != '\0' ? ShortText(problem_.data(), 200) : curl_easy_strerror(code);
}

}  // namespace

tl::expected<HttpReply, std::string> Call(const HttpCall& call) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (ready != CURLE_OK) {
    return tl::unexpected<std::string>(fmt::format("libcurl cannot begin: {}", curl_easy_strerror(ready)));
  }
  return Exchange(call).Run();
}

}  // namespace kvwire::engine
