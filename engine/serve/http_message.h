// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/http/api_error.h"

namespace kvwire::engine {

// A request as it came in, complete.
struct HttpRequest {
  // By name.
  using Fields = std::map<std::string, std::string, std::less<>>;

  std::string method;
  std::string path;  // without the query
  std::string body;
  Fields headers;  // names in lower case, values as they came; of a name that came several times, the values that
                   // differ, joined by ", "
  Fields query;    // decoded; of a name that came several times, the first value

  // Nothing when it was not given.
  std::optional<std::string> Header(std::string_view name_in_lower_case) const;
  std::optional<std::string> Query(std::string_view name) const;

  // Whether nobody waits for the answer any more: the client has closed the connection, or the server is stopping.
  // To be asked by the handler, on its thread, while it waits for something.
  std::function<bool()> abandoned;
};

// Gives a body in pieces: nothing at its end, an empty piece when there is no news yet. To wait at most a tenth of a
// second, because the client's disconnect is looked for between two calls. Destroyed when the response is over, however
// it ends.
using HttpBodySource = std::function<std::optional<std::string>()>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  HttpBodySource source;  // set: instead of the body
};

HttpResponse ErrorResponse(const ApiError& error);

}  // namespace kvwire::engine
