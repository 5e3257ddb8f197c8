// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "wire_test_support.h"

namespace kvwire {

using Complaints = std::vector<std::string>;
using Names = std::vector<std::string>;

enum class Shapes { kMap, kArray, kBoth };
enum class Widths { kAny, kNineBytes };
enum class ByteHashes { kRefused, kTaken };

// Elements of an array event, the tag included.
struct Lengths {
  std::uint32_t least;
  std::uint32_t most;
};

// What one consumer of KV events accepts.
struct Consumer {
  std::string name;
  Shapes shapes;
  std::vector<Lengths> stored_lengths;
  Lengths removed_lengths;
  // Keys that a map event must have, nil or not, besides "type" and "block_hashes".
  Names stored_keys;
  Names removed_keys;
  ByteHashes byte_hashes;
  std::int64_t least_hash;
  std::uint64_t most_hash;
  Widths hash_widths;
  std::uint64_t most_token;
  Names media;  // empty: any text
};

// The consumers that profiles are judged by, one row each.
std::span<const Consumer> AllConsumers();

// REQUIRES: there is one.
const Consumer& ConsumerCalled(const std::string& name);

// Why the consumer refuses the payload, or a part of it; empty if it takes all.
Complaints Complain(const Consumer& consumer, const Bytes& payload);

}  // namespace kvwire
