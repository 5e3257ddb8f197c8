// SPDX-License-Identifier: Apache-2.0
#include "engine/http/api_error.h"

#include <utility>

#include <nlohmann/json.hpp>

namespace kvwire::engine {

ApiError BadRequest(std::string param, std::string message) {
  return {400, std::move(message), "BadRequestError", std::move(param)};
}
ApiError BadRequest(std::string message) { return {400, std::move(message), "BadRequestError", std::nullopt}; }
ApiError NotFound(std::string message) { return {404, std::move(message), "NotFoundError", std::nullopt}; }
ApiError NotFound(std::string param, std::string message) {
  return {404, std::move(message), "NotFoundError", std::move(param)};
}
ApiError MethodNotAllowed(std::string message) {
  return {405, std::move(message), "MethodNotAllowedError", std::nullopt};
}
ApiError PayloadTooLarge(std::string message) {
  return {413, std::move(message), "PayloadTooLargeError", std::nullopt};
}
ApiError TooManyRequests(std::string message) {
  return {429, std::move(message), "TooManyRequestsError", std::nullopt};
}
ApiError InternalError(std::string message) { return {500, std::move(message), "InternalServerError", std::nullopt}; }
ApiError Unavailable(std::string message) { return {503, std::move(message), "ServiceUnavailableError", std::nullopt}; }

std::string ToJson(const ApiError& error) {
  using Json = nlohmann::ordered_json;
  const Json param = error.param.has_value() ? Json(*error.param) : Json(nullptr);
  const Json body = {
      {"error",
       Json::object({{"message", error.message}, {"type", error.type}, {"param", param}, {"code", error.status}})}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvwire::engine
