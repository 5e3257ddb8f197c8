// SPDX-License-Identifier: Apache-2.0
#include "wire_test_support.h"

#include <fstream>
#include <sstream>
#include <stdexcept>

namespace kvwire {

namespace {

using Json = nlohmann::json;

BlockHash HashFromJson(const Json& value) {
  if (value.is_object()) return *BlockHash::FromBytes(FromHex(value.at("hex").get<std::string>()));
  return BlockHash::FromUint64(value.get<std::uint64_t>());
}

std::vector<BlockHash> HashesFromJson(const Json& event) {
  std::vector<BlockHash> hashes;
  for (const Json& hash : event.at("block_hashes")) hashes.push_back(HashFromJson(hash));
  return hashes;
}

std::optional<std::string_view> TextFromJson(const Json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || found->is_null()) return std::nullopt;
  return std::string_view(found->get_ref<const std::string&>());
}

std::optional<std::uint32_t> NumberFromJson(const Json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || found->is_null()) return std::nullopt;
  return found->get<std::uint32_t>();
}

ExtraKey KeyFromJson(const Json& key) {
  if (key.is_string()) return key.get<std::string>();
  return MultimodalKey{key.at(0).get<std::string>(), key.at(1).get<std::int64_t>()};
}

void AddStored(const Json& event, KVEventBatch* batch) {
  const std::vector<BlockHash> hashes = HashesFromJson(event);
  const auto tokens = event.at("token_ids").get<std::vector<TokenId>>();
  std::vector<ExtraKeys> extra_keys;
  BlockStored stored;
  stored.block_hashes = hashes;
  if (!event.at("parent_block_hash").is_null()) stored.parent_block_hash = HashFromJson(event["parent_block_hash"]);
  stored.token_ids = tokens;
  stored.block_size = event.at("block_size").get<std::uint32_t>();
  if (!event.at("lora_id").is_null()) stored.lora_id = event["lora_id"].get<std::int64_t>();
  stored.medium = TextFromJson(event, "medium");
  stored.lora_name = TextFromJson(event, "lora_name");
  if (event.contains("extra_keys")) {
    for (const Json& block : event["extra_keys"]) {
      ExtraKeys& keys = extra_keys.emplace_back();
      if (block.is_null()) continue;
      for (const Json& key : block) keys.push_back(KeyFromJson(key));
    }
    stored.extra_keys = {false, extra_keys};
  }
  stored.group_idx = NumberFromJson(event, "group_idx");
  stored.kv_cache_spec_kind = TextFromJson(event, "kv_cache_spec_kind");
  stored.kv_cache_spec_sliding_window = NumberFromJson(event, "kv_cache_spec_sliding_window");
  stored.locality = TextFromJson(event, "locality");
  stored.ownership = TextFromJson(event, "ownership");
  stored.session_id = TextFromJson(event, "session_id");
  batch->Add(stored);
}

// Draws values whose msgpack widths are all met often.
class Dice {
 public:
  explicit Dice(std::mt19937_64* random) : random_(*random) {}

  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }
  bool Chance(unsigned one_in) { return Below(one_in) == 0; }
  std::uint64_t Number(unsigned bits) { return random_() >> (64 - 1 - Below(bits)); }
  BlockHash Hash() {
    if (Chance(2)) return BlockHash::FromUint64(Number(64));
    Bytes bytes(1 + Below(BlockHash::kMaxSize));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random_());
    return *BlockHash::FromBytes(bytes);
  }
  std::vector<BlockHash> Hashes() {
    std::vector<BlockHash> hashes(Chance(8) ? Below(400) : Below(20));
    for (BlockHash& hash : hashes) hash = Hash();
    return hashes;
  }
  std::string Text() {
    std::string text(Chance(10) ? Below(70000) : Below(40), 'x');
    for (char& c : text) c = static_cast<char>('a' + Below(26));
    return text;
  }
  ExtraKey Key() {
    switch (Below(4)) {
      case 0:
        return Text();
      case 1:
        return MultimodalKey{Text(), static_cast<std::int64_t>(Number(63)) * (Chance(2) ? -1 : 1)};
      case 2:
        return Bytes(Below(300), 7);
      default:
        return OpaqueKey{std::string("\x93\x01\xc0\xa1z", 5)};
    }
  }

 private:
  std::mt19937_64& random_;
};

void AddRandomStored(Dice* dice, KVEventBatch* batch) {
  const std::vector<BlockHash> hashes = dice->Hashes();
  std::vector<TokenId> tokens(dice->Chance(10) ? dice->Below(70000) : dice->Below(64));
  for (TokenId& token : tokens) token = static_cast<TokenId>(dice->Number(31));
  const std::string medium = dice->Chance(2) ? "GPU" : dice->Text();
  const std::string lora = dice->Text();
  const std::string kind = dice->Text();
  std::vector<ExtraKeys> extra_keys(hashes.size());
  for (ExtraKeys& keys : extra_keys) {
    if (dice->Chance(2)) continue;
    for (std::uint64_t i = dice->Below(4); i > 0; --i) keys.push_back(dice->Key());
  }
  BlockStored stored;
  stored.block_hashes = hashes;
  if (dice->Chance(2)) stored.parent_block_hash = dice->Hash();
  stored.token_ids = tokens;
  stored.block_size = static_cast<std::uint32_t>(dice->Number(32));
  if (dice->Chance(3)) {
    stored.lora_id = static_cast<std::int64_t>(dice->Number(63)) * (dice->Chance(2) ? -1 : 1);
    stored.lora_name = lora;
  }
  if (!dice->Chance(4)) stored.medium = medium;
  stored.extra_keys.absent = dice->Chance(3);
  if (!stored.extra_keys.absent && dice->Chance(2)) stored.extra_keys.per_block = extra_keys;
  if (dice->Chance(2)) stored.group_idx = static_cast<std::uint32_t>(dice->Number(32));
  if (dice->Chance(2)) stored.kv_cache_spec_kind = kind;
  if (dice->Chance(2)) stored.kv_cache_spec_sliding_window = static_cast<std::uint32_t>(dice->Number(32));
  if (dice->Chance(4)) stored.locality = "LOCAL";
  if (dice->Chance(4)) stored.ownership = "owner";
  if (dice->Chance(4)) stored.session_id = "session";
  batch->Add(stored);
}

void AddRandomRemoved(Dice* dice, KVEventBatch* batch) {
  const std::vector<BlockHash> hashes = dice->Hashes();
  BlockRemoved removed;
  removed.block_hashes = hashes;
  if (!dice->Chance(4)) removed.medium = dice->Chance(2) ? "GPU" : "CPU";
  if (dice->Chance(2)) removed.group_idx = static_cast<std::uint32_t>(dice->Number(32));
  if (dice->Chance(4)) removed.locality = "REMOTE";
  if (dice->Chance(4)) removed.ownership = "owner";
  batch->Add(removed);
}

}  // namespace

Bytes FromHex(std::string_view hex) {
  if (hex.size() % 2 != 0) throw std::invalid_argument("odd number of hex digits");
  Bytes bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoul(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

std::string ToHex(std::span<const std::uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const std::uint8_t byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::string ReadGolden(const std::string& name) {
  std::ifstream file(std::string(KVWIRE_GOLDEN_DIR) + "/" + name, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read golden file " + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

const std::map<std::string, Bytes>& GoldenPayloads() {
  static const std::map<std::string, Bytes> payloads = [] {
    std::map<std::string, Bytes> loaded;
    std::istringstream lines(ReadGolden("payloads.txt"));
    for (std::string line; std::getline(lines, line);) {
      if (line.empty() || line[0] == '#') continue;
      const std::size_t blank = line.find(' ');
      loaded[line.substr(0, blank)] = FromHex(line.substr(blank + 1));
    }
    return loaded;
  }();
  return payloads;
}

KVEventBatch BatchFromJson(const Json& vector) {
  KVEventBatch batch;
  batch.ts = vector.at("ts").get<double>();
  if (!vector.at("data_parallel_rank").is_null()) {
    batch.data_parallel_rank = vector["data_parallel_rank"].get<std::int64_t>();
  }
  for (const Json& event : vector.at("events")) {
    const std::string kind = event.at("kind").get<std::string>();
    if (kind == "stored") {
      AddStored(event, &batch);
    } else if (kind == "removed") {
      const std::vector<BlockHash> hashes = HashesFromJson(event);
      BlockRemoved removed;
      removed.block_hashes = hashes;
      removed.medium = TextFromJson(event, "medium");
      removed.group_idx = NumberFromJson(event, "group_idx");
      removed.locality = TextFromJson(event, "locality");
      batch.Add(removed);
    } else if (kind == "cleared") {
      batch.Add(AllBlocksCleared{});
    } else {
      throw std::invalid_argument("vector with an unknown event kind " + kind);
    }
  }
  return batch;
}

std::vector<std::string> AllProfiles() {
  // "'vllm', 'dynamo'": the names are what stands between quotes.
  std::vector<std::string> profiles;
  std::istringstream names(ProfileNames());
  bool quoted = false;
  for (std::string part; std::getline(names, part, '\''); quoted = !quoted) {
    if (quoted) profiles.push_back(part);
  }
  return profiles;
}

KVEventsConfig::Extensions SwitchesOf(const std::string& profile) {
  KVEventsConfig::Extensions switches;
  const Status applied = ApplyProfile(profile, &switches);
  if (!applied) throw std::invalid_argument(applied.error().message);
  return switches;
}

Bytes Encode(const KVEventBatch& batch, const KVEventsConfig::Extensions& switches) {
  Bytes payload;
  BatchEncoder(switches).Encode(batch, &payload);
  return payload;
}

KVEventBatch RandomBatch(std::mt19937_64* random) {
  Dice dice(random);
  KVEventBatch batch;
  batch.ts = static_cast<double>(dice.Number(40)) / 8;
  if (!dice.Chance(4)) batch.data_parallel_rank = static_cast<std::int64_t>(dice.Number(20));
  for (std::uint64_t i = dice.Chance(10) ? dice.Below(100) : dice.Below(6); i > 0; --i) {
    switch (dice.Below(5)) {
      case 0:
        batch.Add(AllBlocksCleared{});
        break;
      case 1:
      case 2:
        AddRandomRemoved(&dice, &batch);
        break;
      default:
        AddRandomStored(&dice, &batch);
        break;
    }
  }
  return batch;
}

std::string Rejections(const DecodedBatch& decoded) {
  std::string text;
  for (const RejectedEvent& event : decoded.rejected) {
    if (!text.empty()) text += "; ";
    text += std::to_string(event.index) + " " + std::string(ToString(event.error.code)) + " " + event.error.path;
  }
  return text;
}

}  // namespace kvwire
