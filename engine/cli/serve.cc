// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/cli/commands.h"
#include "engine/cli/log.h"
#include "engine/cli/output.h"
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

namespace kvwire::engine {

namespace {

constexpr int kExitFailed = 1;

class ServeCommand {
 public:
  void AddTo(CLI::App& command) { options_.AddTo(command); }
  int Run();

 private:
  Status Start();
  Status MakeTokenizer();
  Status MakeInstance();
  Status Announce();
  void Finish();

  ServeOptions options_;
  ServeSettings settings_;
  std::unique_ptr<EgressThread> egress_;
  std::deque<EventLog> event_logs_;  // with --dev, one per rank
  std::unique_ptr<Instance> instance_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Routes> routes_;
  std::unique_ptr<DevRoutes> dev_routes_;
  std::unique_ptr<HttpServer> http_;
};

int ServeCommand::Run() {
  const Status started = Start();
  if (!started) {
    PrintError("serve", started.error().message);
    return kExitFailed;
  }
  while (!StopRequested()) SleepUnlessStopped(std::chrono::hours(24));
  Finish();
  return 0;
}

Status ServeCommand::Start() {
  auto settings = options_.Settings();
  if (!settings) return tl::unexpected<Error>(std::move(settings).error());
  settings_ = *std::move(settings);
  settings_.instance.log = StderrLog();
  settings_.routes.version = KVWIRE_VERSION;
  for (const std::string& note : settings_.notes) StderrLog()(LogLevel::kInfo, note);
  Status made = MakeTokenizer();
  if (!made) return made;
  auto http = HttpServer::Create(settings_.http);
  if (!http) {
    const bool is_host = http.error().code == ErrorCode::kInvalidArgument;
    return MakeError(http.error().code, is_host
                                            ? fmt::format("--host {}: {}", settings_.http.host, http.error().message)
                                            : fmt::format("--port {}: {}", settings_.http.port, http.error().message));
  }
  http_ = *std::move(http);
  made = MakeInstance();
  if (!made) return made;
  routes_ = std::make_unique<Routes>(settings_.routes, instance_.get(), tokenizer_.get());
  routes_->Install(http_.get());
  if (settings_.dev) {
    dev_routes_ = std::make_unique<DevRoutes>(instance_.get(), &event_logs_, tokenizer_.get());
    dev_routes_->Install(http_.get());
  }
  made = http_->Start();
  if (!made) return made;
  return Announce();
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

Status ServeCommand::MakeInstance() {
  auto egress = EgressThread::Create();
  if (!egress) return tl::unexpected<Error>(std::move(egress).error());
  egress_ = *std::move(egress);
  if (settings_.dev) {
    event_logs_.resize(settings_.instance.data_parallel_size);
    settings_.instance.observe_batch = [this](std::uint32_t rank, std::uint64_t number, const KVEventBatch& batch) {
      event_logs_[rank].Record(number, batch);
    };
  }
  try {
    auto instance = Instance::Create(settings_.instance, egress_.get());
    if (!instance) {
      // Of all that an instance opens, addresses are only those of the events.
      const bool is_events = instance.error().code == ErrorCode::kAddressInUse;
      return MakeError(instance.error().code,
                       fmt::format("{}{}", is_events ? "--kv-events-config: " : "", instance.error().message));
    }
    instance_ = *std::move(instance);
    if (settings_.fault_script == nullptr) return {};
    return instance_->SetFaults(*settings_.fault_script, std::nullopt);
  } catch (const std::bad_alloc&) {
    return MakeError(ErrorCode::kUnavailable, fmt::format("--num-blocks: {}: there is no memory for so many blocks",
                                                          settings_.instance.scheduler.num_blocks));
  }
}

Status ServeCommand::Announce() {
  for (const EventSourceInfo& source : instance_->sources()) {
    Print(fmt::format("events of rank {} on {}, replay {}, topic \"{}\"\n", source.data_parallel_rank, source.endpoint,
                      source.replay_endpoint.value_or("off"), source.topic));
  }
  Print(fmt::format("serving on http://{}\n", http_->address()));
  return FlushStdout();
}

void ServeCommand::Finish() {
  constexpr std::chrono::milliseconds kLook(2);
  constexpr std::chrono::milliseconds kPublishTime(2000);
  constexpr std::chrono::milliseconds kLastAnswers(1000);
  const auto wait_until = [kLook](std::chrono::milliseconds time, const std::function<bool()>& condition) {
    const auto start = std::chrono::steady_clock::now();
    while (!condition() && std::chrono::steady_clock::now() - start < time) std::this_thread::sleep_for(kLook);
  };
  routes_->Close();
  http_->StopAccepting();
  wait_until(settings_.shutdown_timeout, [this] { return instance_->num_requests() == 0 && http_->num_active() == 0; });
  if (const std::size_t unfinished = instance_->num_requests(); unfinished > 0) {
    StderrLog()(LogLevel::kWarning, fmt::format("{} requests did not finish in time", unfinished));
  }
  instance_->Shutdown(kPublishTime);
  wait_until(kLastAnswers, [this] { return http_->num_active() == 0; });
  http_->Stop();
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
