// SPDX-License-Identifier: Apache-2.0
// One consumer of many streams, on one thread and in one context: what scripts/soak fleet compares with the engines.
//
// fleet_consumer FILE, a line "endpoint replay_endpoint" per stream. Each line on the standard input is answered by a
// line "index next state digest" per stream and a line "end"; it ends with the input.
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "engine/cli/descriptor_limit.h"
#include "kv_events/clock.h"
#include "kv_events/subscribe/event_stream.h"
#include "kv_events/subscribe/mirror.h"
#include "kv_events/subscribe/watched_stream.h"
#include "kv_events/transport/endpoint.h"
#include "kv_events/transport/zmq_context.h"
#include "kv_events/transport/zmq_link.h"

namespace kvwire::test {
namespace {

struct FleetStream {
  Mirror mirror{Removals::kExact};
  std::unique_ptr<EventStream> stream;
};

std::unique_ptr<FleetStream> Open(const std::shared_ptr<ZmqContext>& context, const std::string& live_address,
                                  const std::string& replay_address) {
  LinkOptions options;
  options.watch_peers = true;
  options.receive_hwm = 0;
  auto stream = std::make_unique<FleetStream>();
  const Endpoint replay = Endpoint::Parse(replay_address, "replay").value();
  const Endpoint endpoint = Endpoint::Parse(live_address, "endpoint").value();
  auto live = ZmqLink::Connect(context, LinkKind::kSub, endpoint, options);
  if (!live) {
    std::fprintf(stderr, "fleet_consumer: %s\n", live.error().message.c_str());
    return nullptr;
  }
  stream->stream = std::make_unique<EventStream>(
      LiveLinksTo(context, std::make_shared<EndpointLookup>(endpoint), options, *std::move(live)),
      ReplayLinksTo(context, std::make_shared<EndpointLookup>(replay), nullptr), EventStreamOptions(), &stream->mirror);
  return stream;
}

using Fleet = std::vector<std::unique_ptr<FleetStream>>;

void Report(const Fleet& fleet) {
  std::string text;
  for (std::size_t i = 0; i < fleet.size(); ++i) {
    text += fmt::format("{} {} {} {}\n", i, fleet[i]->stream->next(), ToString(fleet[i]->stream->status().state),
                        fleet[i]->mirror.digest().ToString());
  }
  fmt::print("{}end\n", text);
  std::fflush(stdout);
}

// What was asked on the standard input; nothing at its end.
std::optional<bool> Asked() {
  pollfd polled{STDIN_FILENO, POLLIN, 0};
  if (poll(&polled, 1, 0) <= 0) return false;
  char buffer[256];
  const ssize_t got = read(STDIN_FILENO, buffer, sizeof(buffer));
  if (got <= 0) return std::nullopt;
  return std::string(buffer, static_cast<std::size_t>(got)).find('\n') != std::string::npos;
}

int Consume(const Fleet& fleet) {
  for (;;) {
    int work = 0;
    std::vector<ZmqLink*> links;
    for (const auto& one : fleet) {
      work += one->stream->DoWork(SystemClock::Get().Now());
      for (FrameLink* const link : one->stream->links()) {
        if (link != nullptr) links.push_back(static_cast<ZmqLink*>(link));
      }
    }
    const std::optional<bool> asked = Asked();
    if (!asked) return 0;
    if (*asked) Report(fleet);
    if (work == 0) WaitForInput(links, nullptr, std::chrono::milliseconds(20));
  }
}

int Run(const char* path) {
  engine::RaiseDescriptorLimit();
  const auto context = ZmqContext::Create();
  Fleet fleet;
  std::ifstream in(path);
  for (std::string live, replay; in >> live >> replay;) {
    auto stream = Open(context, live, replay);
    if (!stream) return 1;
    fleet.push_back(std::move(stream));
  }
  fmt::print("following {} streams\n", fleet.size());
  std::fflush(stdout);
  return Consume(fleet);
}

}  // namespace
}  // namespace kvwire::test

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fleet_consumer FILE\n");
    return 2;
  }
  return kvwire::test::Run(argv[1]);
}
