// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "engine/cli/kv_events_option.h"
#include "engine/cli/kv_transfer_option.h"
#include "engine/cli/model_option.h"
#include "engine/cli/tier_option.h"
#include "engine/faults/fault_script.h"
#include "engine/serve/http_server.h"
#include "engine/serve/instance.h"
#include "engine/serve/routes.h"
#include "kv_events/error.h"

namespace kvwire::engine {

// What a server is made of.
struct ServeSettings {
  HttpServer::Options http;
  InstanceConfig instance;
  RoutesConfig routes;    // the version is left to the command
  std::string tokenizer;  // address of a tokenizer; empty: bytes
  std::chrono::milliseconds shutdown_timeout{5000};
  std::uint32_t instances = 1;
  bool dev = false;                                 // open what DevRoutes has
  std::shared_ptr<const FaultScript> fault_script;  // null: none
  std::vector<std::string> notes;                   // what the user should know about the flags, a line each
  std::vector<std::string> warnings;                // flags that do not do what they say
};

// The flags of `kvwire serve`: those of `vllm serve` that mean something here, those that mean nothing and are passed
// over with a note, those that cannot be passed over, and some of our own. Ownership: outlives the parsing of the
// command it was added to.
class ServeOptions {
 public:
  ServeOptions();
  ServeOptions(const ServeOptions&) = delete;
  ServeOptions& operator=(const ServeOptions&) = delete;

  void AddTo(CLI::App& command);

  // After parsing. The environment is the process's.
  // Errors: name the flag, the value and what is allowed.
  Result<ServeSettings> Settings() const;

 private:
  void AddEngineFlags(CLI::App& command);
  void AddModelLength(CLI::App& command);
  void AddHttpFlags(CLI::App& command);
  void AddForeignFlags(CLI::App& command);
  std::vector<std::string> Notes() const;
  Status ApplyHttp(ServeSettings* settings) const;

  ServeSettings settings_;
  KVEventsOption events_;
  KVTransferOption transfer_;
  ModelOption model_option_;
  TierOption tier_option_;
  std::string model_tag_;
  std::string model_;
  std::vector<std::string> served_names_;
  std::vector<std::string> lora_modules_;
  std::vector<std::string> api_keys_;
  std::string tokenizer_;
  std::string hash_algorithm_ = "sha256_cbor";
  double prefill_overhead_us_ = 0;
  double prefill_us_per_token_ = 0;
  double decode_us_per_request_ = 0;
  double shutdown_seconds_ = 5;
  std::string faults_;
  std::string model_length_;  // --max-model-len, when it asks for the default
  std::vector<const CLI::Option*> ignored_;
};

// The arguments of the process for CLI::App::parse, last one first. Those of `serve` are spelled with dashes, as vLLM
// takes underscores too: --kv_events_config.buffer_steps is --kv-events-config.buffer_steps; its short flags, -dp or
// -O3, become the long ones; and a key of a JSON flag without effect, --hf-overrides.KEY, becomes the flag.
std::vector<std::string> CommandLine(int argc, const char* const* argv);

}  // namespace kvwire::engine
