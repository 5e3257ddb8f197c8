// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/serve_options.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/cli/faults_option.h"
#include "engine/cli/number_options.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

constexpr std::uint64_t kMaxBlocks = std::uint64_t{1} << 28;
constexpr std::uint64_t kMaxRanks = 64;
constexpr const char* kDefaultModel = "kvwire-sim";
// Simulated tokens are the letters a to z of the byte tokenizer.
constexpr TokenId kFirstLetter = 97;
constexpr std::uint32_t kNumLetters = 26;

// Flags of vLLM that change nothing here. With a value:
constexpr const char* kIgnoredWithValue[] = {"additional-config",
                                             "all2all-backend",
                                             "allowed-headers",
                                             "allowed-local-media-path",
                                             "allowed-methods",
                                             "allowed-origins",
                                             "api-server-count",
                                             "attention-backend",
                                             "chat-template",
                                             "chat-template-content-format",
                                             "code-revision",
                                             "collect-detailed-traces",
                                             "compilation-config",
                                             "config-format",
                                             "convert",
                                             "cpu-offload-gb",
                                             "data-parallel-address",
                                             "data-parallel-backend",
                                             "data-parallel-rpc-port",
                                             "decode-context-parallel-size",
                                             "default-chat-template-kwargs",
                                             "device",
                                             "distributed-executor-backend",
                                             "download-dir",
                                             "dtype",
                                             "eplb-config",
                                             "generation-config",
                                             "gpu-memory-utilization",
                                             "guided-decoding-backend",
                                             "hf-config-path",
                                             "hf-overrides",
                                             "hf-token",
                                             "ignore-patterns",
                                             "kv-cache-dtype",
                                             "kv-cache-memory-bytes",
                                             "kv-offloading-backend",
                                             "kv-offloading-size",
                                             "kv-transfer-config",
                                             "limit-mm-per-prompt",
                                             "load-format",
                                             "log-config-file",
                                             "logits-processors",
                                             "long-prefill-token-threshold",
                                             "lora-dtype",
                                             "max-cpu-loras",
                                             "max-log-len",
                                             "max-logprobs",
                                             "max-long-partial-prefills",
                                             "max-lora-rank",
                                             "max-loras",
                                             "max-num-partial-prefills",
                                             "max-parallel-loading-workers",
                                             "max-seq-len-to-capture",
                                             "mm-processor-cache-gb",
                                             "mm-processor-kwargs",
                                             "model-impl",
                                             "model-loader-extra-config",
                                             "optimization-level",
                                             "otlp-traces-endpoint",
                                             "override-generation-config",
                                             "pipeline-parallel-size",
                                             "pooler-config",
                                             "quantization",
                                             "reasoning-parser",
                                             "response-role",
                                             "revision",
                                             "root-path",
                                             "rope-scaling",
                                             "rope-theta",
                                             "runner",
                                             "scheduling-policy",
                                             "seed",
                                             "show-hidden-metrics-for-version",
                                             "speculative-config",
                                             "stream-interval",
                                             "structured-outputs-config",
                                             "swap-space",
                                             "task",
                                             "tensor-parallel-size",
                                             "tokenizer-mode",
                                             "tokenizer-revision",
                                             "tool-call-parser",
                                             "tool-parser-plugin",
                                             "uvicorn-log-level",
                                             "worker-cls",
                                             "worker-extension-cls"};
// Without one; each also as --no-.
constexpr const char* kIgnoredFlags[] = {"aggregate-engine-logging",
                                         "async-scheduling",
                                         "calculate-kv-scales",
                                         "disable-cascade-attn",
                                         "disable-custom-all-reduce",
                                         "disable-fastapi-docs",
                                         "disable-frontend-multiprocessing",
                                         "disable-hybrid-kv-cache-manager",
                                         "disable-log-requests",
                                         "disable-log-stats",
                                         "disable-sliding-window",
                                         "disable-uvicorn-access-log",
                                         "enable-auto-tool-choice",
                                         "enable-chunked-prefill",
                                         "enable-dbo",
                                         "enable-eplb",
                                         "enable-expert-parallel",
                                         "enable-log-outputs",
                                         "enable-log-requests",
                                         "enable-lora",
                                         "enable-prompt-tokens-details",
                                         "enable-request-id-headers",
                                         "enable-server-load-tracking",
                                         "enable-sleep-mode",
                                         "enforce-eager",
                                         "interleave-mm-strings",
                                         "kv-cache-metrics",
                                         "skip-mm-profiling",
                                         "trust-remote-code",
                                         "use-tqdm-on-load"};

// Flags of vLLM that must not be passed over in silence.
struct RefusedFlag {
  const char* name;
  const char* reason;
};
constexpr RefusedFlag kRefused[] = {
    {"config", "a configuration file is not read; give its settings as flags"},
    {"data-parallel-rank", "all data-parallel ranks run in this process, from rank 0 on"},
    {"data-parallel-size-local", "all data-parallel ranks run in this process; use --data-parallel-size"},
    {"data-parallel-start-rank", "all data-parallel ranks run in this process, from rank 0 on"},
    {"lora-modules", "LoRA adapters are not offered"},
    {"ssl-ca-certs", "TLS is not offered; put a proxy in front"},
    {"ssl-certfile", "TLS is not offered; put a proxy in front"},
    {"ssl-keyfile", "TLS is not offered; put a proxy in front"},
    {"uds", "Unix sockets are not offered; use --host and --port"},
};

struct ShortFlag {
  std::string_view name;
  std::string_view long_name;
};
constexpr ShortFlag kShortFlags[] = {{"-dp", "--data-parallel-size"},
                                     {"-tp", "--tensor-parallel-size"},
                                     {"-pp", "--pipeline-parallel-size"},
                                     {"-q", "--quantization"}};

// A count that may be written like 8k (8000), 8K (8192) or 1.5m.
std::optional<std::uint64_t> ParseHumanCount(const std::string& text) {
  constexpr std::string_view kSuffixes = "kmgtKMGT";
  const std::size_t suffix = text.empty() ? std::string_view::npos : kSuffixes.find(text.back());
  const std::string digits = suffix == std::string_view::npos ? text : text.substr(0, text.size() - 1);
  const std::string_view allowed = suffix < 4 ? "0123456789." : "0123456789";
  if (digits.empty() || digits.find_first_not_of(allowed) != std::string::npos || digits.size() > 18) {
    return std::nullopt;
  }
  double number = 0;
  try {
    std::size_t read = 0;
    number = std::stod(digits, &read);
    if (read != digits.size()) return std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
  if (suffix != std::string_view::npos) {
    number *= std::pow(suffix < 4 ? 1000.0 : 1024.0, static_cast<double>(suffix % 4 + 1));
  }
  if (number != std::floor(number) || number > 1e15) return std::nullopt;
  return static_cast<std::uint64_t>(number);
}

void AddHumanCount(CLI::App& command, const std::string& flag, std::uint32_t* value, std::uint32_t least,
                   const std::string& description) {
  const auto take = [flag, value, least](const std::string& text) {
    const std::optional<std::uint64_t> given = ParseHumanCount(text);
    constexpr std::uint32_t kMost = std::numeric_limits<std::uint32_t>::max();
    if (!given || *given < least || *given > kMost) {
      throw CLI::ValidationError(
          flag, fmt::format("\"{}\" is not allowed; allowed: a whole number from {} to {}, also like 8k or 8K",
                            ShortText(text), least, kMost));
    }
    *value = static_cast<std::uint32_t>(*given);
  };
  command.add_option_function<std::string>(flag, take, description)
      ->type_name("COUNT")
      ->default_str(fmt::format("{}", *value));
}

}  // namespace

ServeOptions::ServeOptions() {
  settings_.http.port = 8000;
  settings_.instance.scheduler.num_blocks = 10000;
  settings_.instance.runner.first_output_token = kFirstLetter;
  settings_.instance.runner.num_output_tokens = kNumLetters;
}

void ServeOptions::AddTo(CLI::App& command) {
  // As vLLM does it.
  command.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  AddHttpFlags(command);
  AddEngineFlags(command);
  events_.AddTo(command);
  AddForeignFlags(command);
}

void ServeOptions::AddHttpFlags(CLI::App& command) {
  command.add_option("MODEL", model_tag_, "Name of the model; nothing is loaded");
  command.add_option("--model", model_, fmt::format("The same as a flag; default {}", kDefaultModel));
  command
      .add_option("--served-model-name", served_names_, "Names that requests may give instead; the first is in answers")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_option("--host", settings_.http.host, "Address to listen at")->capture_default_str();
  AddCount(command, "--port", &settings_.http.port, {}, "Port to listen at; 0: the system chooses");
  command.add_option("--api-key", api_keys_, "Keys of which a request under /v1 must carry one; also VLLM_API_KEY")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_option("--tokenizer", tokenizer_,
                     "http://HOST:PORT of a tokenize service; any other value: a token for each byte");
  AddCount(command, "--default-max-tokens", &settings_.routes.default_max_tokens, {1},
           "Output tokens of a chat request that names no number");
  command.add_flag(
      "--dev", settings_.dev,
      "Open /kv/state, /kv/lookup, /dev/... and a page at /: whoever reaches them reads and breaks the stream");
  AddCount(command, "--instances", &settings_.instances, {1, 1000},
           "Engines in this process, each with ports of its own: HTTP port + index, event ports + index x ranks");
  command.add_option("--faults", faults_, "Break the streams on purpose: a fault script, or a file of one");
  AddSeconds(command, "--shutdown-timeout", &shutdown_seconds_, "What running requests get to finish at the end");
}

void ServeOptions::AddEngineFlags(CLI::App& command) {
  scheduler::SchedulerConfig& config = settings_.instance.scheduler;
  AddCount(command, "--num-blocks", &config.num_blocks, {2, kMaxBlocks},
           "Blocks of each rank's KV cache, the null block included");
  AddCount(command, "--num-gpu-blocks-override", &config.num_blocks, {2, kMaxBlocks}, "The same in vLLM's spelling");
  model_option_.AddTo(command, 1u << 20);
  AddHumanCount(command, "--max-model-len", &config.max_model_len, 2, "Prompt and output tokens of one request");
  AddCount(command, "--max-num-seqs", &config.max_num_seqs, {1}, "Requests of a rank running at once");
  AddHumanCount(command, "--max-num-batched-tokens", &config.max_num_batched_tokens, 1, "Tokens computed per step");
  command.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", config.enable_prefix_caching,
                   "Reuse the blocks of equal beginnings; on by default");
  command.add_option("--prefix-caching-hash-algo", hash_algorithm_, "Identity of blocks; the seed is PYTHONHASHSEED")
      ->capture_default_str();
  AddCount(command, "--data-parallel-size", &settings_.instance.data_parallel_size, {1, kMaxRanks},
           "Ranks, each with a cache and an event stream of its own");
  AddCount(command, "--max-queued-requests", &settings_.instance.max_requests, {1, 1u << 20},
           "Requests of a rank, queued or unfinished; more are answered with status 429");
  AddNumber(command, "--prefill-overhead-us", &prefill_overhead_us_,
            "Model time of a step that computes prompt tokens");
  AddNumber(command, "--prefill-us-per-token", &prefill_us_per_token_, "Model time per uncached prompt token");
  AddNumber(command, "--decode-us-per-request", &decode_us_per_request_, "Model time of a step per decoding request");
}

void ServeOptions::AddForeignFlags(CLI::App& command) {
  constexpr const char* kHidden = "";
  for (const char* name : kIgnoredWithValue) {
    ignored_.push_back(command.add_option(fmt::format("--{}", name))->group(kHidden));
  }
  for (const char* name : kIgnoredFlags) {
    ignored_.push_back(command.add_flag(fmt::format("--{}", name))->group(kHidden));
    ignored_.push_back(command.add_flag(fmt::format("--no-{}", name))->group(kHidden));
  }
  for (const auto& [name, reason] : kRefused) {
    const std::string flag = fmt::format("--{}", name);
    const auto refuse = [flag, reason = reason](const std::string&) { throw CLI::ValidationError(flag, reason); };
    command.add_option_function<std::string>(flag, refuse)->group(kHidden);
  }
}

std::vector<std::string> ServeOptions::Notes() const {
  std::vector<std::string> notes;
  std::vector<std::string> names;
  for (const CLI::Option* option : ignored_) {
    if (option->count() > 0) names.push_back("--" + option->get_lnames().front());
  }
  if (!names.empty()) notes.push_back(fmt::format("flags without effect here: {}", fmt::join(names, " ")));
  return notes;
}

Result<ServeSettings> ServeOptions::Settings() const {
  ServeSettings settings = settings_;
  settings.notes = Notes();
  const std::string model = !model_tag_.empty() ? model_tag_ : !model_.empty() ? model_ : std::string(kDefaultModel);
  settings.routes.models = served_names_.empty() ? std::vector<std::string>{model} : served_names_;
  settings.routes.api_keys = api_keys_;
  if (api_keys_.empty()) {
    if (auto key = ProcessEnvironment("VLLM_API_KEY"); key && !key->empty()) settings.routes.api_keys.push_back(*key);
  }
  for (const std::string& key : settings.routes.api_keys) {
    // Header fields are taken for URL-encoded text.
    const auto is_plain = [](unsigned char c) { return c > 0x20 && c < 0x7f && c != '%'; };
    if (!key.empty() && std::all_of(key.begin(), key.end(), is_plain)) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     "--api-key: a key is empty or has characters that are not allowed; allowed: printable ASCII "
                     "without space and %");
  }
  if (tokenizer_.starts_with("http://") || tokenizer_.starts_with("https://")) {
    settings.tokenizer = tokenizer_;
  } else if (!tokenizer_.empty()) {
    settings.notes.push_back(fmt::format(
        "--tokenizer {}: no tokenizer is loaded; every byte of a text is a token (http://HOST:PORT asks a tokenize "
        "service)",
        ShortText(tokenizer_)));
  }

  auto events = events_.Config();
  if (!events) {
    return MakeError(events.error().code, fmt::format("--kv-events-config: {}", events.error().message));
  }
  settings.instance.events = *std::move(events);
  if (!settings.instance.events.enable_kv_cache_events) {
    settings.notes.push_back(
        "KV-cache events are off; --kv-events-config '{\"enable_kv_cache_events\": true}' turns them on");
  }
  if (const Status divided = model_option_.Apply(&settings.instance.scheduler); !divided) {
    return tl::unexpected<Error>(divided.error());
  }
  const auto algorithm = ParseHashAlgorithm(hash_algorithm_);
  if (!algorithm) {
    return MakeError(algorithm.error().code, fmt::format("--prefix-caching-hash-algo: {}", algorithm.error().message));
  }
  settings.instance.hash_algorithm = *algorithm;
  settings.instance.hash_seed = ProcessEnvironment("PYTHONHASHSEED").value_or(std::string(kDefaultHashSeed));
  const auto microseconds = [](double value) { return std::chrono::nanoseconds(NanosOf(value * 1e-6)); };
  settings.instance.time_model = {microseconds(prefill_overhead_us_), microseconds(prefill_us_per_token_),
                                  microseconds(decode_us_per_request_)};
  auto script = ReadFaultScript(faults_);
  if (!script) return tl::unexpected<Error>(std::move(script).error());
  settings.fault_script = *std::move(script);
  settings.shutdown_timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::nanoseconds(NanosOf(shutdown_seconds_)));
  return settings;
}

std::vector<std::string> CommandLine(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  if (!arguments.empty() && arguments.front() == "serve") {
    for (std::string& argument : arguments) {
      const auto name_end = [&argument] {
        return argument.begin() + static_cast<std::ptrdiff_t>(std::min(argument.find_first_of(".="), argument.size()));
      };
      for (const auto& [name, long_name] : kShortFlags) {
        if (std::string_view(argument.begin(), name_end()) == name) argument.replace(0, name.size(), long_name);
      }
      if (argument.starts_with("--")) std::replace(argument.begin(), name_end(), '_', '-');
    }
  }
  std::reverse(arguments.begin(), arguments.end());
  return arguments;
}

}  // namespace kvwire::engine
