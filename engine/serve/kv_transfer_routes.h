// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/serve/http_server.h"
#include "engine/serve/instance.h"

namespace kvwire::engine {

// Answers the fetches of other engines. REQUIRES: the instance's configuration has kv_transfer; it outlives the
// server's Stop; before Start.
void InstallKVTransferRoutes(HttpServer* server, Instance* instance);

}  // namespace kvwire::engine
