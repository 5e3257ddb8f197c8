// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kv_events/config.h"
#include "kv_events/error.h"
#include "kv_events/log.h"
#include "kv_events/transport/curve_keys.h"

namespace kvwire {

// What a publisher's sockets are closed with, read from the files that its configuration names; empty where it names
// none. Server and client have one pair of keys.
struct PublisherCurve {
  std::shared_ptr<const CurveServer> server;  // of sockets that bind
  std::shared_ptr<const CurveClient> client;  // of a publishing socket that connects

  // Which sockets there are.
  struct Sockets {
    bool bind = false;
    bool connect = false;
  };
  // Errors: name the setting, the file and what is allowed. `log` hears of clients that are turned away.
  static Result<PublisherCurve> Read(const CurveConfig& config, Sockets sockets, const LogSink& log);
};

}  // namespace kvwire
