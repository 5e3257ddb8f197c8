// SPDX-License-Identifier: Apache-2.0
#include "engine/http/api_error.h"

#include <doctest/doctest.h>

namespace kvwire::engine {
namespace {

TEST_CASE("an error has the body that OpenAI clients read, with the status as its code") {
  CHECK(ToJson(BadRequest("n", "n is 0, expected 1")) ==
        R"({"error":{"message":"n is 0, expected 1","type":"BadRequestError","param":"n","code":400}})");
  CHECK(ToJson(BadRequest("no JSON")) ==
        R"({"error":{"message":"no JSON","type":"BadRequestError","param":null,"code":400}})");
}

TEST_CASE("every kind of error has its status and its type") {
  const auto is = [](const ApiError& error, int status, const char* type) {
    CHECK(error.status == status);
    CHECK(error.type == type);
    CHECK(error.message == "m");
  };
  is(BadRequest("m"), 400, "BadRequestError");
  is(BadRequest("p", "m"), 400, "BadRequestError");
  is(NotFound("m"), 404, "NotFoundError");
  is(NotFound("model", "m"), 404, "NotFoundError");
  is(MethodNotAllowed("m"), 405, "MethodNotAllowedError");
  is(PayloadTooLarge("m"), 413, "PayloadTooLargeError");
  is(TooManyRequests("m"), 429, "TooManyRequestsError");
  is(InternalError("m"), 500, "InternalServerError");
  is(Unavailable("m"), 503, "ServiceUnavailableError");
  CHECK(NotFound("model", "m").param == "model");
}

TEST_CASE("a message that is no UTF-8 becomes text") {
  CHECK(ToJson(BadRequest("a\xff\"b\n")) ==
        "{\"error\":{\"message\":\"a\xef\xbf\xbd\\\"b\\n\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}}");
}

}  // namespace
}  // namespace kvwire::engine
