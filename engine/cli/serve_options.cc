// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/serve_options.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/cli/faults_option.h"
#include "engine/cli/hash_warning.h"
#include "engine/cli/number_options.h"
#include "engine/cli/serve_lora.h"
#include "engine/http/utf8_text.h"
#include "engine/serve/fault_effect.h"
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
constexpr const char* kIgnoredWithValue[] = {"all2all-backend",
                                             "allowed-headers",
                                             "allowed-local-media-path",
                                             "allowed-media-domains",
                                             "allowed-methods",
                                             "allowed-origins",
                                             "api-server-count",
                                             "attention-backend",
                                             "chat-template",
                                             "chat-template-content-format",
                                             "code-revision",
                                             "collect-detailed-traces",
                                             "config-format",
                                             "convert",
                                             "cpu-offload-gb",
                                             "data-parallel-address",
                                             "data-parallel-backend",
                                             "data-parallel-rpc-port",
                                             "decode-context-parallel-size",
                                             "device",
                                             "distributed-executor-backend",
                                             "download-dir",
                                             "dtype",
                                             "generation-config",
                                             "gpu-memory-utilization",
                                             "guided-decoding-backend",
                                             "h11-max-header-count",
                                             "h11-max-incomplete-event-size",
                                             "hf-config-path",
                                             "hf-token",
                                             "ignore-patterns",
                                             "kv-cache-dtype",
                                             "kv-cache-memory-bytes",
                                             "kv-offloading-backend",
                                             "kv-offloading-size",
                                             "load-format",
                                             "log-config-file",
                                             "logits-processors",
                                             "logprobs-mode",
                                             "long-prefill-token-threshold",
                                             "lora-dtype",
                                             "mamba-block-size",
                                             "mamba-cache-dtype",
                                             "mamba-ssm-cache-dtype",
                                             "max-cpu-loras",
                                             "max-log-len",
                                             "max-logprobs",
                                             "max-long-partial-prefills",
                                             "max-lora-rank",
                                             "max-loras",
                                             "max-num-partial-prefills",
                                             "max-parallel-loading-workers",
                                             "max-seq-len-to-capture",
                                             "mm-encoder-tp-mode",
                                             "mm-processor-cache-gb",
                                             "mm-processor-cache-type",
                                             "model-impl",
                                             "optimization-level",
                                             "otlp-traces-endpoint",
                                             "pipeline-parallel-size",
                                             "prefill-context-parallel-size",
                                             "pt-load-map-location",
                                             "quantization",
                                             "reasoning-parser",
                                             "response-role",
                                             "revision",
                                             "root-path",
                                             "rope-theta",
                                             "runner",
                                             "scheduler-cls",
                                             "scheduling-policy",
                                             "seed",
                                             "show-hidden-metrics-for-version",
                                             "stream-interval",
                                             "swap-space",
                                             "task",
                                             "tokenizer-mode",
                                             "tokenizer-revision",
                                             "tool-call-parser",
                                             "tool-parser-plugin",
                                             "tool-server",
                                             "uvicorn-log-level",
                                             "video-pruning-rate",
                                             "worker-cls",
                                             "worker-extension-cls"};
// With a JSON object, whose keys can be given one by one: --NAME.KEY VALUE.
constexpr const char* kIgnoredJson[] = {"additional-config",
                                        "attention-config",
                                        "compilation-config",
                                        "default-chat-template-kwargs",
                                        "ec-transfer-config",
                                        "eplb-config",
                                        "hf-overrides",
                                        "kernel-config",
                                        "limit-mm-per-prompt",
                                        "media-io-kwargs",
                                        "mm-processor-kwargs",
                                        "model-loader-extra-config",
                                        "override-generation-config",
                                        "pooler-config",
                                        "profiler-config",
                                        "rope-scaling",
                                        "speculative-config",
                                        "structured-outputs-config"};
// Without one; each also as --no-.
constexpr const char* kIgnoredFlags[] = {"aggregate-engine-logging",
                                         "allow-credentials",
                                         "async-scheduling",
                                         "calculate-kv-scales",
                                         "disable-cascade-attn",
                                         "disable-chunked-mm-input",
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
                                         "enable-log-deltas",
                                         "enable-log-outputs",
                                         "enable-log-requests",
                                         "enable-lora",
                                         "enable-prompt-tokens-details",
                                         "enable-request-id-headers",
                                         "enable-server-load-tracking",
                                         "enable-sleep-mode",
                                         "enable-ssl-refresh",
                                         "enable-tokenizer-info-endpoint",
                                         "enforce-eager",
                                         "exclude-tools-when-tool-choice-none",
                                         "interleave-mm-strings",
                                         "kv-cache-metrics",
                                         "kv-sharing-fast-prefill",
                                         "log-error-stack",
                                         "return-tokens-as-token-ids",
                                         "skip-mm-profiling",
                                         "trust-remote-code",
                                         "trust-request-chat-template",
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
    {"middleware", "Python middleware cannot be loaded; put a proxy in front"},
    {"ssl-ca-certs", "TLS is not offered; put a proxy in front"},
    {"ssl-cert-reqs", "TLS is not offered; put a proxy in front"},
    {"ssl-certfile", "TLS is not offered; put a proxy in front"},
    {"ssl-ciphers", "TLS is not offered; put a proxy in front"},
    {"ssl-keyfile", "TLS is not offered; put a proxy in front"},
    {"uds", "Unix sockets are not offered; use --host and --port"},
};

// Those without a value.
constexpr RefusedFlag kRefusedFlags[] = {
    {"data-parallel-external-lb", "all data-parallel ranks run in this process; use --data-parallel-size"},
    {"data-parallel-hybrid-lb", "all data-parallel ranks run in this process; use --data-parallel-size"},
    {"enable-force-include-usage", "a stream has usage when its request's stream_options.include_usage says so"},
    {"headless", "an engine without its HTTP server is not offered"},
};

struct ShortFlag {
  std::string_view name;
  std::string_view long_name;
};
constexpr ShortFlag kShortFlags[] = {{"-O", "--optimization-level"},
                                     {"-ac", "--attention-config"},
                                     {"-asc", "--api-server-count"},
                                     {"-cc", "--compilation-config"},
                                     {"-dcp", "--decode-context-parallel-size"},
                                     {"-dp", "--data-parallel-size"},
                                     {"-dpa", "--data-parallel-address"},
                                     {"-dpb", "--data-parallel-backend"},
                                     {"-dpe", "--data-parallel-external-lb"},
                                     {"-dph", "--data-parallel-hybrid-lb"},
                                     {"-dpl", "--data-parallel-size-local"},
                                     {"-dpn", "--data-parallel-rank"},
                                     {"-dpp", "--data-parallel-rpc-port"},
                                     {"-dpr", "--data-parallel-start-rank"},
                                     {"-ep", "--enable-expert-parallel"},
                                     {"-pcp", "--prefill-context-parallel-size"},
                                     {"-pp", "--pipeline-parallel-size"},
                                     {"-q", "--quantization"},
                                     {"-sc", "--speculative-config"},
                                     {"-tp", "--tensor-parallel-size"}};

// Names go into answers and metrics, which are UTF-8.
Status CheckUtf8(std::string_view flag, std::span<const std::string> values) {
  for (const std::string& value : values) {
    if (WellFormedUtf8(value) == value.size()) continue;
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("{}: \"{}\"; allowed: UTF-8", flag, ShortText(value)));
  }
  return {};
}

// Where the name of a flag ends: before a key or a value.
std::size_t NameEnd(const std::string& argument) { return std::min(argument.find_first_of(".="), argument.size()); }

// -O3 is -O=3; -O.KEY is a key of the compilation config.
void SpellOptimization(std::string* argument) {
  if (argument->size() < 3 || !argument->starts_with("-O")) return;
  const bool is_level = argument->find_first_not_of("0123456789", 2) == std::string::npos;
  if (is_level) argument->insert(2, "=");
  if ((*argument)[2] == '.') argument->replace(0, 2, "-cc");
}

// In the one spelling that is known here; keys of JSON flags that are ignored go.
void SpellFlag(std::string* argument) {
  SpellOptimization(argument);
  for (const auto& [name, long_name] : kShortFlags) {
    if (argument->compare(0, NameEnd(*argument), name) != 0) continue;
    argument->replace(0, name.size(), long_name);
    break;
  }
  if (!argument->starts_with("--")) return;
  const auto end = argument->begin() + static_cast<std::ptrdiff_t>(NameEnd(*argument));
  std::replace(argument->begin(), end, '_', '-');
  if (end == argument->end() || *end != '.') return;
  const std::string_view name(argument->begin() + 2, end);
  // Of its keys one is an object, whose own have no effect.
  constexpr std::string_view kExtra = "--kv-transfer-config.kv_connector_extra_config";
  if (argument->starts_with(kExtra)) {
    const auto value = std::find(argument->begin() + kExtra.size(), argument->end(), '=');
    argument->erase(argument->begin() + kExtra.size(), value);
  }
  if (std::ranges::find(kIgnoredJson, name) == std::end(kIgnoredJson)) return;
  argument->erase(end, std::find(end, argument->end(), '='));
}

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

// The count of a flag's text. `others`: what else the flag allows, for the message.
std::uint32_t HumanCount(const std::string& flag, const std::string& text, std::uint32_t least,
                         std::string_view others) {
  const std::optional<std::uint64_t> given = ParseHumanCount(text);
  constexpr std::uint32_t kMost = std::numeric_limits<std::uint32_t>::max();
  if (given && *given >= least && *given <= kMost) return static_cast<std::uint32_t>(*given);
  throw CLI::ValidationError(flag,
                             fmt::format("\"{}\" is not allowed; allowed: a whole number from {} to {}, also like 8k "
                                         "or 8K{}",
                                         ShortText(text), least, kMost, others));
}

void AddHumanCount(CLI::App& command, const std::string& flag, std::uint32_t* value, std::uint32_t least,
                   const std::string& description) {
  const auto take = [flag, value, least](const std::string& text) { *value = HumanCount(flag, text, least, ""); };
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
  transfer_.AddTo(command);
  AddForeignFlags(command);
}

void ServeOptions::AddHttpFlags(CLI::App& command) {
  command.add_option("MODEL", model_tag_, "Name of the model; nothing is loaded");
  command.add_option("--model", model_, fmt::format("The same as a flag; default {}", kDefaultModel));
  command
      .add_option("--served-model-name", served_names_, "Names that requests may give instead; the first is in answers")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      .add_option("--lora-modules", lora_modules_,
                  "NAME=PATH of adapters that requests may name as their model; nothing is loaded")
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
  tier_option_.AddTo(command);
  tier_option_.AddResetTo(command);
  AddModelLength(command);
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

void ServeOptions::AddModelLength(CLI::App& command) {
  std::uint32_t* const length = &settings_.instance.scheduler.max_model_len;
  const auto take = [this, length, standard = *length](const std::string& text) {
    // What a model of vLLM has, or what fits its memory.
    const bool is_standard = text == "auto" || text == "-1";
    model_length_ = is_standard ? fmt::format("{} (the default, {})", text, standard) : "";
    *length = is_standard ? standard : HumanCount("--max-model-len", text, 2, ", auto or -1 for the default");
  };
  command.add_option_function<std::string>("--max-model-len", take, "Prompt and output tokens of one request")
      ->type_name("COUNT")
      ->default_str(fmt::format("{}", *length));
}

void ServeOptions::AddForeignFlags(CLI::App& command) {
  constexpr const char* kHidden = "";
  for (const char* name : kIgnoredWithValue) {
    ignored_.push_back(command.add_option(fmt::format("--{}", name))->group(kHidden));
  }
  for (const char* name : kIgnoredJson) {
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
  for (const auto& [name, reason] : kRefusedFlags) {
    const std::string flag = fmt::format("--{}", name);
    const auto refuse = [flag, reason = reason] { throw CLI::ValidationError(flag, reason); };
    command.add_flag_callback(flag, refuse)->group(kHidden);
  }
}

std::vector<std::string> ServeOptions::Notes() const {
  std::vector<std::string> notes;
  std::vector<std::string> names;
  for (const CLI::Option* option : ignored_) {
    if (option->count() > 0) names.push_back("--" + option->get_lnames().front());
  }
  if (tier_option_.has_idle_workers()) names.emplace_back("--tensor-parallel-size");
  if (transfer_.is_ignored()) names.push_back("--kv-transfer-config");
  if (!model_length_.empty()) names.push_back("--max-model-len " + model_length_);
  if (!names.empty()) notes.push_back(fmt::format("flags without effect here: {}", fmt::join(names, " ")));
  return notes;
}

// Who may ask for what, and how texts are read.
Status ServeOptions::ApplyHttp(ServeSettings* settings) const {
  if (!model_tag_.empty() && !model_.empty() && model_tag_ != model_) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("--model: \"{}\", while MODEL is \"{}\"; allowed: one name, given either way",
                                 ShortText(model_), ShortText(model_tag_)));
  }
  const std::string model = !model_tag_.empty() ? model_tag_ : !model_.empty() ? model_ : std::string(kDefaultModel);
  settings->routes.models = served_names_.empty() ? std::vector<std::string>{model} : served_names_;
  for (const auto& [flag, names] : {std::pair("MODEL", std::span(&model_tag_, 1)),
                                    {"--model", std::span(&model_, 1)},
                                    {"--served-model-name", std::span(served_names_)},
                                    {"--lora-modules", std::span(lora_modules_)}}) {
    if (Status text = CheckUtf8(flag, names); !text) return text;
  }
  if (std::ranges::find(settings->routes.models, "") != settings->routes.models.end()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--served-model-name: a name is empty; allowed: names of at least one character");
  }
  if (settings->http.host.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "--host: \"\"; allowed: an address or a name to listen at");
  }
  Result<std::vector<LoraModule>> adapters = ParseLoraModules(lora_modules_, settings->routes.models);
  if (!adapters) return tl::unexpected<Error>(std::move(adapters).error());
  settings->routes.lora_modules = *std::move(adapters);
  settings->routes.api_keys = api_keys_;
  if (api_keys_.empty()) {
    if (auto key = ProcessEnvironment("VLLM_API_KEY"); key && !key->empty()) settings->routes.api_keys.push_back(*key);
  }
  for (const std::string& key : settings->routes.api_keys) {
    const auto is_plain = [](unsigned char c) { return c > 0x20 && c < 0x7f; };
    if (!key.empty() && std::all_of(key.begin(), key.end(), is_plain)) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     "--api-key: a key is empty or has characters that are not allowed; allowed: printable ASCII "
                     "without space");
  }
  if (tokenizer_.starts_with("http://") || tokenizer_.starts_with("https://")) {
    settings->tokenizer = tokenizer_;
  } else if (!tokenizer_.empty()) {
    settings->notes.push_back(fmt::format(
        "--tokenizer {}: no tokenizer is loaded; every byte of a text is a token (http://HOST:PORT asks a tokenize "
        "service)",
        ShortText(tokenizer_)));
  }
  return {};
}

Result<ServeSettings> ServeOptions::Settings() const {
  ServeSettings settings = settings_;
  settings.notes = Notes();
  if (const Status http = ApplyHttp(&settings); !http) return tl::unexpected<Error>(http.error());
  auto events = events_.Config();
  if (!events) return tl::unexpected<Error>(events.error());
  settings.instance.events = *std::move(events);
  if (!settings.instance.events.enable_kv_cache_events) {
    settings.notes.push_back(
        "KV-cache events are off; --kv-events-config '{\"enable_kv_cache_events\": true}' turns them on");
  }
  auto transfer = transfer_.Config();
  if (!transfer) return tl::unexpected<Error>(std::move(transfer).error());
  settings.instance.kv_transfer = *std::move(transfer);
  if (settings.instance.kv_transfer) {
    const bool everywhere = settings.http.host == "0.0.0.0" || settings.http.host == "::";
    const std::string listening = everywhere ? "127.0.0.1" : settings.http.host;
    settings.instance.kv_transfer->host = transfer_.host().empty() ? listening : transfer_.host();
  }
  if (const Status divided = model_option_.Apply(&settings.instance.scheduler); !divided) {
    return tl::unexpected<Error>(divided.error());
  }
  if (const Status told = CheckGroupsAreTold(settings.instance.scheduler, settings.instance.events); !told) {
    return tl::unexpected<Error>(told.error());
  }
  if (const Status tiers = tier_option_.Apply(&settings.instance.scheduler, &settings.instance.runner); !tiers) {
    return tl::unexpected<Error>(tiers.error());
  }
  const auto algorithm = ParseHashAlgorithm(hash_algorithm_);
  if (!algorithm) {
    return MakeError(algorithm.error().code, fmt::format("--prefix-caching-hash-algo: {}", algorithm.error().message));
  }
  settings.instance.hash_algorithm = *algorithm;
  settings.instance.hash_seed = ResolveHashSeed(*algorithm, std::nullopt, ProcessEnvironment);
  if (auto reason = WhyHashesDiffer(*algorithm, settings.instance.hash_seed, settings.instance.events)) {
    settings.warnings.push_back(*std::move(reason));
  }
  const auto microseconds = [](double value) { return std::chrono::nanoseconds(NanosOf(value * 1e-6)); };
  settings.instance.time_model = {microseconds(prefill_overhead_us_), microseconds(prefill_us_per_token_),
                                  microseconds(decode_us_per_request_)};
  auto script = ReadFaultScript(faults_);
  if (!script) return tl::unexpected<Error>(std::move(script).error());
  settings.fault_script = *std::move(script);
  if (settings.fault_script != nullptr) {
    if (const auto reason = WhyWithoutEffect(*settings.fault_script, settings.instance.events)) {
      settings.warnings.push_back(fmt::format("--faults: {}", *reason));
    }
  }
  settings.shutdown_timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::nanoseconds(NanosOf(shutdown_seconds_)));
  return settings;
}

std::vector<std::string> CommandLine(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  if (!arguments.empty() && arguments.front() == "serve") {
    for (std::string& argument : arguments) SpellFlag(&argument);
  }
  std::reverse(arguments.begin(), arguments.end());
  return arguments;
}

}  // namespace kvwire::engine
