// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/cli/stream_source.h"
#include "kv_events/error.h"
#include "kv_events/log.h"
#include "kv_events/subscribe/stream_set.h"

namespace kvwire::engine {

// Keeps a set of streams as its sources say: adds what they name, removes what they name no more. A source that fails
// keeps what it said last; each failure is said once, and again when it is another one or came back.
//
// Threads: of the owner, and one of its own between Start and Stop. The set outlives it.
class StreamRoster {
 public:
  struct Options {
    StreamSet* set = nullptr;
    std::string topic;  // of addresses that have none
    LogSink log;
    std::function<void(const StreamSet::Ended&)> on_ended;  // a stream that was removed; may be empty
  };

  StreamRoster(std::vector<std::unique_ptr<StreamSource>> sources, Options options);
  ~StreamRoster();
  StreamRoster(const StreamRoster&) = delete;
  StreamRoster& operator=(const StreamRoster&) = delete;

  // A first look, then one a second. Errors: of a source that must begin well, and of its streams.
  Status Start();
  // Returns within a look. Idempotent.
  void Stop();

  // One look; the first error of the sources that must begin well, and of streams. Of the first look these are not
  // said, too. Not between Start and Stop.
  Status Look(MonotonicNanos now);

 private:
  struct Known {
    std::unique_ptr<StreamSource> source;
    std::vector<StreamAddress> addresses;  // of the last good look
    std::string error;                     // that was said and still holds
  };

  Status LookAt(Known* known, MonotonicNanos now);
  Status Apply();
  void Say(const std::string& error);
  void Run();

  std::vector<Known> sources_;
  const Options options_;
  bool looked_ = false;
  std::map<std::string, StreamAddress> watched_;
  std::map<std::string, std::string> refused_;  // by name, why; said

  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace kvwire::engine
