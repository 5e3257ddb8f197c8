// SPDX-License-Identifier: Apache-2.0
#include "engine/http/kv_transfer_params.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace kvwire::engine {

namespace {

using Json = nlohmann::json;

constexpr const char* kField = "kv_transfer_params";

// The fields of the object, by their full names in messages.
class ParamsReader {
 public:
  ParamsReader(const Json& params, FieldReader* fields) : params_(params), fields_(fields) {}

  bool Flag(const char* name) {
    const Json* value = Find(name);
    if (value == nullptr) return false;
    if (value->is_boolean()) return value->get<bool>();
    fields_->Refuse(Full(name), *value, "true or false");
    return false;
  }

  // `needed`: it must be given.
  std::string Text(const char* name, bool needed) {
    const std::string expected = fmt::format("a text of 1 to {} bytes", kMaxTransferNameBytes);
    const Json* value = FindOrMiss(name, needed, expected);
    if (value == nullptr) return {};
    if (value->is_string() && !value->get_ref<const std::string&>().empty() &&
        value->get_ref<const std::string&>().size() <= kMaxTransferNameBytes) {
      return value->get<std::string>();
    }
    fields_->Refuse(Full(name), *value, expected);
    return {};
  }

  std::uint16_t Port(const char* name, bool needed) {
    constexpr const char* kExpected = "an integer from 1 to 65535";
    const Json* value = FindOrMiss(name, needed, kExpected);
    if (value == nullptr) return 0;
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint16_t>::max();
    if (value->is_number_unsigned() && value->get<std::uint64_t>() >= 1 && value->get<std::uint64_t>() <= kMost) {
      return value->get<std::uint16_t>();
    }
    fields_->Refuse(Full(name), *value, kExpected);
    return 0;
  }

  std::vector<std::vector<scheduler::BlockId>> BlockIds(const char* name, bool needed) {
    const Json* value = FindOrMiss(name, needed, "a list of block ids");
    return value == nullptr ? std::vector<std::vector<scheduler::BlockId>>()
                            : ReadBlockIds(Full(name), *value, fields_);
  }

 private:
  static std::string Full(const char* name) { return fmt::format("{}.{}", kField, name); }

  const Json* Find(const char* name) const {
    const auto found = params_.find(name);
    return found == params_.end() || found->is_null() ? nullptr : &*found;
  }

  const Json* FindOrMiss(const char* name, bool needed, std::string_view expected) {
    const Json* value = Find(name);
    if (value == nullptr && needed) fields_->RefuseMissing(Full(name), expected);
    return value;
  }

  const Json& params_;
  FieldReader* const fields_;
};

bool IsBlockId(const Json& value) {
  return value.is_number_unsigned() && value.get<std::uint64_t>() <= std::numeric_limits<scheduler::BlockId>::max();
}

}  // namespace

std::vector<std::vector<scheduler::BlockId>> ReadBlockIds(const std::string& field, const Json& value,
                                                          FieldReader* fields) {
  const std::string expected = fmt::format("a list of block ids from 0 to {}, or one such list for each group",
                                           std::numeric_limits<scheduler::BlockId>::max());
  std::vector<std::vector<scheduler::BlockId>> ids;
  const auto refuse = [&](const std::string& name, const Json& wrong) {
    fields->Refuse(name, wrong, expected);
    return std::vector<std::vector<scheduler::BlockId>>();
  };
  if (!value.is_array()) return refuse(field, value);
  const bool is_flat = value.empty() || !value.front().is_array();
  const std::size_t groups = is_flat ? 1 : value.size();
  for (std::size_t group = 0; group < groups; ++group) {
    const Json& list = is_flat ? value : value[group];
    const std::string name = is_flat ? field : fmt::format("{}[{}]", field, group);
    if (!list.is_array()) return refuse(name, list);
    std::vector<scheduler::BlockId>& of_group = ids.emplace_back();
    for (const Json& id : list) {
      if (!IsBlockId(id)) return refuse(fmt::format("{}[{}]", name, of_group.size()), id);
      of_group.push_back(id.get<scheduler::BlockId>());
    }
  }
  return ids;
}

std::optional<KVTransferParams> ReadKVTransferParams(FieldReader* fields) {
  const Json* given = fields->Given(kField);
  if (given == nullptr) return std::nullopt;
  if (!given->is_object()) {
    fields->Refuse(kField, *given, "an object");
    return std::nullopt;
  }
  ParamsReader reader(*given, fields);
  KVTransferParams params;
  params.do_remote_decode = reader.Flag("do_remote_decode");
  params.do_remote_prefill = reader.Flag("do_remote_prefill");
  if (params.do_remote_decode && params.do_remote_prefill) {
    fields->Refuse("kv_transfer_params.do_remote_prefill", true, "false, as do_remote_decode is true");
  }
  const bool needed = params.do_remote_prefill;
  params.remote_block_ids = reader.BlockIds("remote_block_ids", needed);
  params.remote_engine_id = reader.Text("remote_engine_id", needed);
  params.remote_request_id = reader.Text("remote_request_id", needed);
  params.remote_host = reader.Text("remote_host", needed);
  params.remote_port = reader.Port("remote_port", needed);
  return params;
}

nlohmann::ordered_json ToJson(const KVTransferParams& params) {
  nlohmann::ordered_json ids = params.remote_block_ids;
  if (params.remote_block_ids.size() == 1) ids = params.remote_block_ids.front();
  return {{"do_remote_prefill", params.do_remote_prefill},
          {"do_remote_decode", params.do_remote_decode},
          {"remote_block_ids", std::move(ids)},
          {"remote_engine_id", params.remote_engine_id},
          {"remote_request_id", params.remote_request_id},
          {"remote_host", params.remote_host},
          {"remote_port", params.remote_port},
          {"tp_size", 1}};
}

}  // namespace kvwire::engine
