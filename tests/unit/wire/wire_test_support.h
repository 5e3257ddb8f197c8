// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "kv_events/wire/decoder.h"
#include "kv_events/wire/encoder.h"

namespace kvwire {

using Bytes = std::vector<std::uint8_t>;

Bytes FromHex(std::string_view hex);
std::string ToHex(std::span<const std::uint8_t> bytes);

// A file of tests/golden, whole.
std::string ReadGolden(const std::string& name);
// payloads.txt: name -> payload.
const std::map<std::string, Bytes>& GoldenPayloads();

// The batch that a vector of wire.json describes.
KVEventBatch BatchFromJson(const nlohmann::json& vector);

// The profiles that the configuration accepts.
std::vector<std::string> AllProfiles();
// The switches of one of them.
KVEventsConfig::Extensions SwitchesOf(const std::string& profile);

// Encodes with the given switches.
Bytes Encode(const KVEventBatch& batch, const KVEventsConfig::Extensions& switches = {});

// A hash of the 8 bytes of `value`.
inline BlockHash H(std::uint64_t value) { return BlockHash::FromUint64(value); }

// Events that can be expressed with every switch; lengths, widths, nils and extra keys drawn at random.
KVEventBatch RandomBatch(std::mt19937_64* random);

// The rejected events as "index code path", joined by "; ".
std::string Rejections(const DecodedBatch& decoded);

}  // namespace kvwire
