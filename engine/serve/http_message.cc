// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/http_message.h"

namespace kvwire::engine {

namespace {

std::optional<std::string> Find(const HttpRequest::Fields& fields, std::string_view name) {
  const auto found = fields.find(name);
  if (found == fields.end()) return std::nullopt;
  return found->second;
}

}  // namespace

std::optional<std::string> HttpRequest::Header(std::string_view name_in_lower_case) const {
  return Find(headers, name_in_lower_case);
}

std::optional<std::string> HttpRequest::Query(std::string_view name) const { return Find(query, name); }

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = ToJson(error);
  // Both pass by themselves.
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace kvwire::engine
