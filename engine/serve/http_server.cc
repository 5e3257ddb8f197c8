// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/http_server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <httplib.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/http/caller_scope.h"
#include "engine/http/request_body.h"
#include "engine/serve/http_connection.h"
#include "engine/serve/http_incoming.h"
#include "engine/serve/worker_pool.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

constexpr int kBacklog = 1024;
constexpr socket_t kNoSocket = -1;

// What is known of the request that this thread is answering.
struct Exchange {
  HttpConnection* connection = nullptr;
  IncomingRequest* request = nullptr;
  bool close = false;  // the connection cannot be used again
};
thread_local Exchange* exchange = nullptr;

// One request as httplib reads it, up to the end of its body and no further, and its connection to write to.
class RequestStream final : public httplib::Stream {
 public:
  RequestStream(HttpConnection* connection, IncomingRequest* request)
      : connection_(connection), request_(request), head_(request->HeadForParser()) {}

  bool is_readable() const override { return connection_->HasInput(); }
  bool is_writable() const override { return !connection_->PeerGone(); }
  ssize_t read(char* data, std::size_t size) override {
    if (head_read_ == head_.size()) return request_->ReadBody(data, size);
    const std::size_t count = head_.copy(data, size, head_read_);
    head_read_ += count;
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* data, std::size_t size) override { return connection_->Write(data, size); }
  // Nobody asks for addresses.
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override { get_remote_ip_and_port(ip, port); }
  // httplib only compares it with a bound of select(), which is not used here.
  socket_t socket() const override { return 0; }

 private:
  HttpConnection* const connection_;
  IncomingRequest* const request_;
  const std::string head_;
  std::size_t head_read_ = 0;
};

// httplib's side of the protocol, without its sockets and threads.
class Protocol final : public httplib::Server {
 public:
  Protocol() { svr_sock_ = 0; }  // any socket: streams end when there is none
  void EndStreams() { svr_sock_ = kNoSocket; }
  using httplib::Server::process_request;
};

std::string AddressText(const std::string& host, std::uint16_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

// The numeric address that a socket is bound to.
std::pair<std::string, std::uint16_t> BoundAddress(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST] = "";
  char service[NI_MAXSERV] = "";
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), service, sizeof(service),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  return {host, static_cast<std::uint16_t>(std::stoul(service))};
}

// A listening socket, or -1 with errno.
int Listen(const addrinfo& address) {
  const int listener = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol);
  if (listener < 0) return -1;
  // Only past connections do not hold the port; a second listener would need SO_REUSEPORT.
  const int on = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(listener, address.ai_addr, address.ai_addrlen) == 0 && ::listen(listener, kBacklog) == 0) return listener;
  const int reason = errno;
  ::close(listener);
  errno = reason;
  return -1;
}

HttpRequest ToRequest(const httplib::Request& from, std::string body) {
  HttpRequest request;
  request.method = from.method;
  request.path = from.path;
  request.body = std::move(body);
  request.headers = exchange->request->Fields();
  for (const auto& [name, value] : from.params) request.query.emplace(name, value);
  return request;
}

void ToHttplib(HttpResponse from, httplib::Response* to) {
  to->status = from.status;
  for (const auto& [name, value] : from.headers) to->set_header(name, value);
  if (!from.source) {
    if (!from.body.empty()) to->set_content(from.body, from.content_type);
    return;
  }
  auto provider = [source = std::move(from.source)](std::size_t, httplib::DataSink& sink) {
    const std::optional<std::string> piece = source();
    if (!piece) {
      sink.done();
      return true;
    }
    // An empty piece would end the stream.
    return piece->empty() ? sink.is_writable() : sink.write(piece->data(), piece->size());
  };
  if (!exchange->request->is_http_1_0()) {
    to->set_chunked_content_provider(from.content_type, std::move(provider));
    return;
  }
  // Its end is that of the connection.
  exchange->close = true;
  to->set_content_provider(from.content_type, std::move(provider));
}

// How a body may be packed, as httplib unpacks it.
constexpr std::array<std::string_view, 3> kPackings = {"br", "deflate", "gzip"};

ApiError UnsupportedMediaType(std::string message) {
  ApiError error = BadRequest(std::move(message));
  error.status = 415;
  return error;
}

// What httplib refuses by itself it gives a status only.
ApiError ErrorOfStatus(int status) {
  switch (status) {
    case 404:
      return NotFound("there is no such path");
    case 413:
      return PayloadTooLarge(fmt::format("the body is larger than {} bytes", kMaxBodyBytes));
    case 414: {
      ApiError error = BadRequest("the request's address is too long");
      error.status = 414;
      return error;
    }
    default: {
      ApiError error = status < 500 ? BadRequest("the request is no complete and well-formed HTTP/1.1 request")
                                    : InternalError("the request could not be answered");
      error.status = status;
      return error;
    }
  }
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(Options options, int listener, int stop_event)
      : options_(std::move(options)),
        listener_(listener),
        stop_event_(stop_event),
        bound_(BoundAddress(listener)),
        pool_({options_.max_threads, options_.max_threads}) {
    SetUpProtocol();
  }
  ~Impl() {
    Stop();
    ::close(stop_event_);
  }

  void Handle(const std::string& method, const std::string& path, Handler handler) {
    routes_[path][method] = std::move(handler);
  }
  void ExplainMissing(const std::string& prefix, const std::string& reason) { missing_.emplace_back(prefix, reason); }
  Status Start();
  void StopAccepting();
  void Stop();

  std::string address() const { return AddressText(bound_.first, bound_.second); }
  std::uint16_t port() const { return bound_.second; }
  std::size_t num_active() const { return num_active_.load(); }

 private:
  void SetUpProtocol();
  void Accept();
  void Serve(int socket);
  void ShutDownAll(int how);
  // Of a request whose body was not read: the response if it is decided already.
  std::string WhyMissing(const std::string& path) const;
  std::optional<HttpResponse> Route(const httplib::Request& request) const;
  // The route's answer; never throws.
  HttpResponse Answer(const std::string& method, HttpRequest request) const;

  const Options options_;
  int listener_;  // -1: closed
  const int stop_event_;
  const std::pair<std::string, std::uint16_t> bound_;
  std::map<std::string, std::map<std::string, Handler>> routes_;
  std::vector<std::pair<std::string, std::string>> missing_;  // beginnings of paths, and what is said of them
  Protocol protocol_;
  WorkerPool pool_;
  std::thread accepting_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<std::size_t> num_active_{0};
  std::mutex sockets_mutex_;
  std::set<int> sockets_;  // open connections; guarded by sockets_mutex_
};

void HttpServer::Impl::SetUpProtocol() {
  protocol_.set_keep_alive_timeout(std::chrono::ceil<std::chrono::seconds>(options_.keep_alive).count());
  protocol_.set_keep_alive_max_count(std::numeric_limits<int>::max());
  protocol_.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    std::optional<HttpResponse> decided = Route(request);
    if (!decided) return httplib::Server::HandlerResponse::Unhandled;
    ToHttplib(*std::move(decided), &response);
    return httplib::Server::HandlerResponse::Handled;
  });
  // Only what Route lets through gets here.
  protocol_.Post(
      ".*", [this](const httplib::Request& request, httplib::Response& response, const httplib::ContentReader& read) {
        std::string body;
        bool too_large = false;
        const bool complete = read([&](const char* data, std::size_t size) {
          too_large = too_large || size > kMaxBodyBytes - body.size();
          if (!too_large) body.append(data, size);
          return !too_large;
        });
        if (complete) {
          ToHttplib(Answer("POST", ToRequest(request, std::move(body))), &response);
          return;
        }
        exchange->close = true;
        ToHttplib(ErrorResponse(too_large ? ErrorOfStatus(413) : exchange->request->BodyFault()), &response);
      });
  protocol_.set_error_handler([](const httplib::Request&, httplib::Response& response) {
    if (!response.body.empty()) return;
    // A request that httplib could not read: nobody knows where the next one begins.
    exchange->close = true;
    ToHttplib(ErrorResponse(ErrorOfStatus(response.status)), &response);
  });
  protocol_.set_exception_handler([](const httplib::Request&, httplib::Response& response, const std::exception_ptr&) {
    exchange->close = true;
    ToHttplib(ErrorResponse(InternalError("the request could not be answered")), &response);
  });
  protocol_.set_post_routing_handler([this](const httplib::Request&, httplib::Response& response) {
    if (!exchange->close && !draining_) return;
    response.headers.erase("Keep-Alive");
    if (!response.has_header("Connection")) response.set_header("Connection", "close");
  });
}

std::string HttpServer::Impl::WhyMissing(const std::string& path) const {
  for (const auto& [prefix, reason] : missing_) {
    if (path.starts_with(prefix)) return " " + reason;
  }
  return {};
}

std::optional<HttpResponse> HttpServer::Impl::Route(const httplib::Request& request) const {
  const IncomingRequest& incoming = *exchange->request;
  if (incoming.fault()) {
    exchange->close = true;
    return ErrorResponse(*incoming.fault());
  }
  // A refusal leaves the body unread.
  const auto refuse = [&](const ApiError& error) {
    if (incoming.has_body()) exchange->close = true;
    return ErrorResponse(error);
  };
  const auto route = routes_.find(request.path);
  if (route == routes_.end()) {
    return refuse(
        NotFound(fmt::format("there is no path \"{}\"{}", ShortText(request.path), WhyMissing(request.path))));
  }
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  if (!route->second.contains(method)) {
    std::string allowed;
    for (const auto& [name, handler] : route->second) allowed += (allowed.empty() ? "" : ", ") + name;
    HttpResponse response = refuse(MethodNotAllowed(
        fmt::format("{} does not have the method {}; allowed: {}", request.path, request.method, allowed)));
    response.headers.emplace_back("Allow", allowed);
    return response;
  }
  if (incoming.IsLongerThan(kMaxBodyBytes)) return refuse(ErrorOfStatus(413));
  if (method == "POST") {
    const std::optional<std::string> packing = incoming.Packing();
    if (!packing || std::ranges::find(kPackings, *packing) != kPackings.end()) return std::nullopt;
    return refuse(UnsupportedMediaType(fmt::format("Content-Encoding is \"{}\", expected one of: identity, {}",
                                                   ShortText(*packing), fmt::join(kPackings, ", "))));
  }
  if (incoming.has_body()) exchange->close = true;
  return Answer(method, ToRequest(request, {}));
}

HttpResponse HttpServer::Impl::Answer(const std::string& method, HttpRequest request) const {
  request.abandoned = [this, connection = exchange->connection] { return stopping_ || connection->PeerGone(); };
  try {
    return routes_.find(request.path)->second.find(method)->second(request);
  } catch (const std::exception& error) {
    return ErrorResponse(InternalError(error.what()));
  }
}

Status HttpServer::Impl::Start() {
  try {
    accepting_ = std::thread([this] { Accept(); });
    return {};
  } catch (const std::system_error& error) {
    return MakeError(ErrorCode::kUnavailable, fmt::format("no thread for the HTTP server: {}", error.what()));
  }
}

void HttpServer::Impl::Accept() {
  while (!draining_) {
    pollfd entries[] = {{listener_, POLLIN, 0}, {stop_event_, POLLIN, 0}};
    if (::poll(entries, 2, -1) <= 0 || (entries[0].revents & POLLIN) == 0) continue;
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) {
      // The connection is gone again, or there is no descriptor left for it: others may end meanwhile.
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      continue;
    }
    const int on = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    {
      const std::lock_guard<std::mutex> lock(sockets_mutex_);
      sockets_.insert(socket);
    }
    if (pool_.Submit([this, socket] { Serve(socket); })) continue;
    const std::lock_guard<std::mutex> lock(sockets_mutex_);
    sockets_.erase(socket);
    ::close(socket);
  }
}

void HttpServer::Impl::Serve(int socket) {
  HttpConnection connection(socket, {options_.patience, options_.head_time});
  // A new connection's request may still be on its way.
  constexpr std::chrono::milliseconds kGrace(1000);
  const auto accepted = std::chrono::steady_clock::now();
  std::chrono::milliseconds time = options_.patience;
  const auto give_up = [&] {
    return draining_ || (pool_.has_waiting() && std::chrono::steady_clock::now() - accepted > kGrace);
  };
  const CallerScope caller([&] { return stopping_ || connection.PeerGone(); });
  while (connection.AwaitRequest(time, give_up)) {
    ++num_active_;
    bool closed = false;
    bool done = false;
    Exchange current{&connection};
    exchange = &current;
    try {
      IncomingRequest request(&connection, options_.head_time);
      current.request = &request;
      RequestStream stream(&connection, &request);
      done = protocol_.process_request(stream, draining_, closed, nullptr);
    } catch (const std::exception&) {
      // Of a body's source, or for lack of memory. The response has begun: only its missing end can tell.
    }
    --num_active_;
    exchange = nullptr;
    if (!done || closed || current.close || draining_) {
      if (!stopping_) connection.FinishWriting();
      break;
    }
    time = options_.keep_alive;
  }
  const std::lock_guard<std::mutex> lock(sockets_mutex_);
  sockets_.erase(socket);
}

void HttpServer::Impl::StopAccepting() {
  draining_ = true;
  ::eventfd_write(stop_event_, 1);
  if (accepting_.joinable()) accepting_.join();
  if (listener_ >= 0) ::close(std::exchange(listener_, -1));
}

void HttpServer::Impl::ShutDownAll(int how) {
  const std::lock_guard<std::mutex> lock(sockets_mutex_);
  for (const int socket : sockets_) ::shutdown(socket, how);
}

void HttpServer::Impl::Stop() {
  StopAccepting();
  stopping_ = true;
  protocol_.EndStreams();
  // Handlers see that nobody waits any more; their responses still get out. Who does not read them is cut off.
  constexpr std::chrono::milliseconds kLastWords(500);
  ShutDownAll(SHUT_RD);
  const auto start = std::chrono::steady_clock::now();
  while (num_active_ != 0 && std::chrono::steady_clock::now() - start < kLastWords) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ShutDownAll(SHUT_RDWR);
  pool_.Stop();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Create(Options options) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(options.port);
  const int failure =
      ::getaddrinfo(options.host.empty() ? nullptr : options.host.c_str(), service.c_str(), &hints, &found);
  if (failure != 0) {
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("host: \"{}\" is no address or known name: {}",
                                                              ShortText(options.host), gai_strerror(failure)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  int listener = -1;
  int reason = 0;
  for (const addrinfo* address = found; address != nullptr && listener < 0; address = address->ai_next) {
    listener = Listen(*address);
    if (listener < 0) reason = errno;
  }
  if (listener < 0) {
    const ErrorCode code = reason == EADDRINUSE      ? ErrorCode::kAddressInUse
                           : reason == EADDRNOTAVAIL ? ErrorCode::kInvalidArgument
                                                     : ErrorCode::kUnavailable;
    return MakeError(code, fmt::format("cannot listen on {} for HTTP: {}", AddressText(options.host, options.port),
                                       std::strerror(reason)));
  }
  const int stop_event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_event < 0) {
    const int event_reason = errno;
    ::close(listener);
    return MakeError(ErrorCode::kUnavailable,
                     fmt::format("no event for the HTTP server: {}", std::strerror(event_reason)));
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::make_unique<Impl>(std::move(options), listener, stop_event)));
}

void HttpServer::Handle(const std::string& method, const std::string& path, Handler handler) {
  impl_->Handle(method, path, std::move(handler));
}
void HttpServer::ExplainMissing(const std::string& prefix, const std::string& reason) {
  impl_->ExplainMissing(prefix, reason);
}

Status HttpServer::Start() { return impl_->Start(); }
std::string HttpServer::address() const { return impl_->address(); }
std::uint16_t HttpServer::port() const { return impl_->port(); }
std::size_t HttpServer::num_active() const { return impl_->num_active(); }
void HttpServer::StopAccepting() { impl_->StopAccepting(); }
void HttpServer::Stop() { impl_->Stop(); }

}  // namespace kvwire::engine
