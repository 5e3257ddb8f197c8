// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/cli/commands.h"
#include "engine/cli/descriptor_limit.h"
#include "engine/cli/log.h"
#include "engine/cli/output.h"
#include "engine/cli/replay_report.h"
#include "engine/cli/serve_options.h"
#include "engine/cli/stop_signal.h"
#include "engine/http/remote_tokenizer.h"
#include "engine/http/tokenizer.h"
#include "engine/serve/dev_routes.h"
#include "engine/serve/egress_thread.h"
#include "engine/serve/event_log.h"
#include "engine/serve/http_server.h"
#include "engine/serve/instance.h"
#include "engine/serve/routes.h"
#include "engine/unique_text.h"
#include "kv_events/transport/endpoint.h"

namespace kvwire::engine {

namespace {

constexpr int kExitFailed = 1;

// One engine behind one port.
class Server {
 public:
  // Binds and starts everything. Errors: name the flag.
  static Result<std::unique_ptr<Server>> Create(const ServeSettings& settings, EgressThread* egress,
                                                const Tokenizer* tokenizer);

  // Refuses new requests; then, once nothing runs any more or the time is over, ends.
  void Close();
  bool idle() const { return instance_->num_requests() == 0 && http_->num_active() == 0; }
  std::size_t num_requests() const { return instance_->num_requests(); }
  void ShutdownEngine();
  void StopHttp() { http_->Stop(); }
  std::size_t num_active() const { return http_->num_active(); }

  // A line per event source, and where it serves.
  std::string Description() const;

 private:
  Server() = default;
  Status Start(const ServeSettings& settings, EgressThread* egress, const Tokenizer* tokenizer);
  Status MakeInstance(const ServeSettings& settings, EgressThread* egress);

  std::deque<EventLog> event_logs_;  // with --dev, one per rank
  std::unique_ptr<Instance> instance_;
  std::unique_ptr<Routes> routes_;
  std::unique_ptr<DevRoutes> dev_routes_;
  std::unique_ptr<HttpServer> http_;
};

Result<std::unique_ptr<Server>> Server::Create(const ServeSettings& settings, EgressThread* egress,
                                               const Tokenizer* tokenizer) {
  std::unique_ptr<Server> server(new Server);
  const Status started = server->Start(settings, egress, tokenizer);
  if (!started) return tl::unexpected<Error>(started.error());
  return server;
}

Status Server::Start(const ServeSettings& settings, EgressThread* egress, const Tokenizer* tokenizer) {
  auto http = HttpServer::Create(settings.http);
  if (!http) {
    const bool is_host = http.error().code == ErrorCode::kInvalidArgument;
    return MakeError(http.error().code, is_host
                                            ? fmt::format("--host {}: {}", settings.http.host, http.error().message)
                                            : fmt::format("--port {}: {}", settings.http.port, http.error().message));
  }
  http_ = *std::move(http);
  Status made = MakeInstance(settings, egress);
  if (!made) return made;
  routes_ = std::make_unique<Routes>(settings.routes, instance_.get(), tokenizer);
  routes_->Install(http_.get());
  if (settings.dev) {
    std::vector<std::string> adapters;
    for (const LoraModule& module : settings.routes.lora_modules) adapters.push_back(module.name);
    dev_routes_ = std::make_unique<DevRoutes>(instance_.get(), &event_logs_, tokenizer, std::move(adapters));
    dev_routes_->Install(http_.get());
  } else {
    for (const char* const prefix : {"/dev/", "/kv/"}) http_->ExplainMissing(prefix, "without --dev");
  }
  return http_->Start();
}

Status Server::MakeInstance(const ServeSettings& settings, EgressThread* egress) {
  InstanceConfig config = settings.instance;
  if (config.kv_transfer) {
    config.kv_transfer->port = http_->port();
    config.kv_transfer->life = UniqueText();
    if (config.kv_transfer->engine_id.empty()) config.kv_transfer->engine_id = UniqueText();
  }
  if (settings.dev) {
    event_logs_.resize(config.data_parallel_size);
    config.observe_batch = [this](std::uint32_t rank, std::uint64_t number, const KVEventBatch& batch) {
      event_logs_[rank].Record(number, batch);
    };
  }
  try {
    auto instance = Instance::Create(std::move(config), egress);
    if (!instance) {
      // Of all that an instance opens, addresses are only those of the events.
      const bool is_events = instance.error().code == ErrorCode::kAddressInUse;
      return MakeError(instance.error().code,
                       fmt::format("{}{}", is_events ? "--kv-events-config: " : "", instance.error().message));
    }
    instance_ = *std::move(instance);
    if (settings.fault_script == nullptr) return {};
    return instance_->SetFaults(*settings.fault_script, std::nullopt);
  } catch (const std::bad_alloc&) {
    return MakeError(ErrorCode::kUnavailable, fmt::format("--num-blocks: {}: there is no memory for so many blocks",
                                                          settings.instance.scheduler.num_blocks));
  }
}

void Server::Close() {
  routes_->Close();
  http_->StopAccepting();
}

void Server::ShutdownEngine() {
  constexpr std::chrono::milliseconds kPublishTime(2000);
  instance_->Shutdown(kPublishTime);
}

std::string Server::Description() const {
  const KVEventsConfig& events = instance_->config().events;
  const Result<Endpoint> endpoint = Endpoint::Parse(events.endpoint, "endpoint");
  const bool binds = !endpoint || Binds(*endpoint, events.kvwire.mode);
  std::string text;
  for (const EventSourceInfo& source : instance_->sources()) {
    text += fmt::format("events of rank {} {} {}, replay {}, topic \"{}\"\n", source.data_parallel_rank,
                        binds ? "on" : "to", source.endpoint, source.replay_endpoint.value_or("off"), source.topic);
  }
  return text + fmt::format("serving on http://{}\n", http_->address());
}

// The addresses of the engine with this index in a fleet: each takes as many ports, or names, as it has ranks.
Result<std::string> AddressOf(const std::string& text, std::string_view field, std::uint32_t index,
                              std::uint32_t ranks) {
  Result<Endpoint> endpoint = Endpoint::Parse(text, field);
  if (!endpoint) return tl::unexpected<Error>(endpoint.error());
  if (index == 0) return text;
  if (endpoint->scheme != Endpoint::Scheme::kTcp) {
    if (endpoint->path != "*") endpoint->path += fmt::format("_i{}", index);
    return endpoint->ToString();
  }
  if (endpoint->port.value_or(0) == 0) return text;
  const std::uint64_t port = std::uint64_t{*endpoint->port} + std::uint64_t{index} * ranks;
  return Endpoint::Parse(fmt::format("tcp://{}:{}", endpoint->host, port), field).map([](const Endpoint& moved) {
    return moved.ToString();
  });
}

Result<ServeSettings> SettingsOf(const ServeSettings& first, std::uint32_t index) {
  ServeSettings settings = first;
  if (first.http.port != 0) {
    if (first.http.port + index > 65535) {
      return MakeError(ErrorCode::kInvalidArgument,
                       fmt::format("--port {}: the last of {} engines would have port {}", first.http.port,
                                   first.instances, first.http.port + first.instances - 1));
    }
    settings.http.port = static_cast<std::uint16_t>(first.http.port + index);
  }
  // Each rank adds its own.
  if (first.instances > 1 && !first.instance.runner.disk_dir.empty()) {
    settings.instance.runner.disk_dir += fmt::format("/instance-{}", index);
  }
  KVEventsConfig& events = settings.instance.events;
  if (events.EffectivePublisher() == PublisherKind::kNull) return settings;
  const std::uint32_t ranks = settings.instance.data_parallel_size;
  Result<std::string> endpoint = AddressOf(events.endpoint, "endpoint", index, ranks);
  if (!endpoint) return tl::unexpected<Error>(endpoint.error());
  events.endpoint = *std::move(endpoint);
  if (!events.replay_endpoint) return settings;
  Result<std::string> replay = AddressOf(*events.replay_endpoint, "replay_endpoint", index, ranks);
  if (!replay) return tl::unexpected<Error>(replay.error());
  events.replay_endpoint = *std::move(replay);
  return settings;
}

class ServeCommand {
 public:
  void AddTo(CLI::App& command) { options_.AddTo(command); }
  int Run();

 private:
  Status Start();
  Status MakeTokenizer();
  Status Announce(std::chrono::nanoseconds took) const;
  void Finish();

  ServeOptions options_;
  ServeSettings settings_;
  std::unique_ptr<EgressThread> egress_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::unique_ptr<Server>> servers_;
};

int ServeCommand::Run() {
  const Status started = Start();
  // Also when something did not start for that reason.
  if (StopRequested()) {
    StderrLog()(LogLevel::kInfo, "stopped before everything was started");
    Finish();
    return 0;
  }
  if (!started) {
    PrintError("serve", started.error().message);
    return kExitFailed;
  }
  while (!StopRequested()) SleepUnlessStopped(std::chrono::hours(24));
  Finish();
  return 0;
}

Status ServeCommand::Start() {
  const auto start = std::chrono::steady_clock::now();
  auto settings = options_.Settings();
  if (!settings) return tl::unexpected<Error>(std::move(settings).error());
  settings_ = *std::move(settings);
  settings_.instance.log = StderrLog();
  settings_.instance.give_up = StopRequested;
  settings_.routes.version = KVWIRE_VERSION;
  for (const std::string& note : settings_.notes) StderrLog()(LogLevel::kInfo, note);
  for (const std::string& warning : settings_.warnings) StderrLog()(LogLevel::kWarning, warning);
  Status made = MakeTokenizer();
  if (!made) return made;
  auto egress = EgressThread::Create();
  if (!egress) return tl::unexpected<Error>(std::move(egress).error());
  egress_ = *std::move(egress);
  RaiseDescriptorLimit();
  for (std::uint32_t index = 0; index < settings_.instances && !StopRequested(); ++index) {
    const auto own = SettingsOf(settings_, index);
    if (!own) return tl::unexpected<Error>(own.error());
    auto server = Server::Create(*own, egress_.get(), tokenizer_.get());
    if (!server) return tl::unexpected<Error>(std::move(server).error());
    servers_.push_back(*std::move(server));
  }
  if (StopRequested()) return {};
  return Announce(std::chrono::steady_clock::now() - start);
}

Status ServeCommand::MakeTokenizer() {
  if (settings_.tokenizer.empty()) {
    tokenizer_ = std::make_unique<ByteTokenizer>();
    return {};
  }
  RemoteTokenizerConfig config;
  config.url = settings_.tokenizer;
  auto remote = RemoteTokenizer::Create(std::move(config));
  if (!remote) return MakeError(remote.error().code, fmt::format("--tokenizer: {}", remote.error().message));
  tokenizer_ = *std::move(remote);
  return {};
}

Status ServeCommand::Announce(std::chrono::nanoseconds took) const {
  for (const auto& server : servers_) Print(server->Description());
  if (servers_.size() > 1) {
    Print(fmt::format("{} engines started in {:.2f} s; {:.1f} MB of memory each\n", servers_.size(),
                      std::chrono::duration<double>(took).count(),
                      static_cast<double>(PeakMemoryBytes()) * 1e-6 / static_cast<double>(servers_.size())));
  }
  return FlushStdout();
}

void ServeCommand::Finish() {
  constexpr std::chrono::milliseconds kLook(2);
  constexpr std::chrono::milliseconds kLastAnswers(1000);
  const auto wait_until = [kLook, this](std::chrono::milliseconds time, bool (*done)(const Server&)) {
    const auto start = std::chrono::steady_clock::now();
    const auto all_done = [&] {
      return std::all_of(servers_.begin(), servers_.end(), [done](const auto& server) { return done(*server); });
    };
    while (!all_done() && std::chrono::steady_clock::now() - start < time) std::this_thread::sleep_for(kLook);
  };
  for (const auto& server : servers_) server->Close();
  wait_until(settings_.shutdown_timeout, [](const Server& server) { return server.idle(); });
  std::size_t unfinished = 0;
  for (const auto& server : servers_) unfinished += server->num_requests();
  if (unfinished > 0) {
    StderrLog()(LogLevel::kWarning, fmt::format("{} requests did not finish in time", unfinished));
  }
  for (const auto& server : servers_) server->ShutdownEngine();
  wait_until(kLastAnswers, [](const Server& server) { return server.num_active() == 0; });
  for (const auto& server : servers_) server->StopHttp();
}

}  // namespace

void AddServeCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("serve", "Serve the OpenAI API from an engine without a GPU, and publish its events");
  const auto serve = std::make_shared<ServeCommand>();
  serve->AddTo(*command);
  command->callback([serve, exit_code] { *exit_code = serve->Run(); });
}

}  // namespace kvwire::engine
