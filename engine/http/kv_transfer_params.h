// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/http/json_fields.h"
#include "scheduler/scheduler_output.h"

namespace kvwire::engine {

inline constexpr std::size_t kMaxTransferNameBytes = 256;  // of an engine, a request or a host

// Where a prompt's blocks are computed and where they go, as vLLM's NixlConnector says it in the bodies of requests and
// answers. What an engine's answer to do_remote_decode has, the other engine's request has as it is. A value.
struct KVTransferParams {
  bool do_remote_decode = false;   // of a request: the prompt's blocks are to stay held for another engine
  bool do_remote_prefill = false;  // of a request: another engine holds them; the rest says where
  std::vector<std::vector<scheduler::BlockId>> remote_block_ids;  // by group and position; null: not held
  std::string remote_engine_id;
  std::string remote_request_id;
  std::string remote_host;
  std::uint16_t remote_port = 0;

  friend bool operator==(const KVTransferParams&, const KVTransferParams&) = default;
};

// Of a request's "kv_transfer_params"; nothing when it is not given or wrong. Unknown keys are ignored. Of
// remote_block_ids a flat list is that of one group.
std::optional<KVTransferParams> ReadKVTransferParams(FieldReader* fields);

// Of an answer.
nlohmann::ordered_json ToJson(const KVTransferParams& params);

// A list of lists of block ids, or a flat list for one group. `field` is its name in messages.
std::vector<std::vector<scheduler::BlockId>> ReadBlockIds(const std::string& field, const nlohmann::json& value,
                                                          FieldReader* fields);

}  // namespace kvwire::engine
