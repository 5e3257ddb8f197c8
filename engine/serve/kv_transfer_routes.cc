// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/kv_transfer_routes.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/http/json_fields.h"
#include "engine/http/kv_transfer_params.h"
#include "engine/http/request_body.h"
#include "engine/serve/kv_transfer.h"
#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

HttpResponse Refused(const FieldReader& fields) { return ErrorResponse(*fields.error()); }

HttpResponse SendBlocks(const HttpRequest& request, Instance* instance) {
  const auto body = ParseBody(request.body);
  if (!body) return ErrorResponse(body.error());
  FieldReader fields(*body);
  constexpr std::string_view kKeys[] = {"engine_id", "request_id", "block_ids"};
  fields.RefuseOthers(kKeys);
  const std::string engine_id = fields.Text("engine_id").value_or("");
  const std::string request_id = fields.Text("request_id").value_or("");
  const nlohmann::json* given = fields.Given("block_ids");
  if (given == nullptr) fields.RefuseMissing("block_ids", "a list of block ids for each group; empty: none");
  const bool gives_up = given != nullptr && given->is_array() && given->empty();
  std::vector<std::vector<scheduler::BlockId>> blocks;
  if (given != nullptr && !gives_up) blocks = ReadBlockIds("block_ids", *given, &fields);
  if (fields.error()) return Refused(fields);
  const KVTransferConfig& config = *instance->config().kv_transfer;
  if (engine_id != config.engine_id) {
    return ErrorResponse(NotFound(
        "engine_id", fmt::format("engine_id is \"{}\", expected \"{}\"", ShortText(engine_id), config.engine_id)));
  }
  const auto held = ParseHeldRequest(request_id, config.life);
  if (!held || held->rank >= instance->num_ranks()) {
    return ErrorResponse(NotFound("request_id", fmt::format("request_id is \"{}\", expected one that an answer's "
                                                            "remote_request_id named",
                                                            ShortText(request_id))));
  }
  auto words = instance->TakeKept(held->rank, held->id, blocks);
  if (!words) return ErrorResponse(words.error());
  HttpResponse response;
  response.content_type = "application/octet-stream";
  response.body = PackWords(*words);
  return response;
}

}  // namespace

void InstallKVTransferRoutes(HttpServer* server, Instance* instance) {
  server->Handle("POST", kTransferPath,
                 [instance](const HttpRequest& request) { return SendBlocks(request, instance); });
}

}  // namespace kvwire::engine
