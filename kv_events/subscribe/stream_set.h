// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv_events/error.h"
#include "kv_events/fork_guard.h"
#include "kv_events/log.h"
#include "kv_events/subscribe/stream_checker.h"
#include "kv_events/subscribe/stream_figures.h"
#include "kv_events/subscribe/watched_stream.h"
#include "kv_events/transport/zmq_context.h"

namespace kvwire {

// Many streams on a few threads and one ZeroMQ context. Each stream has a sink of its own, called on the stream's
// thread; streams come and go at run time.
//
// Threads: all by any thread but the set's own, a sink's calls included.
// Ownership: owns streams and sinks.
// Errors: Add names the stream and what is wrong; a stream that nobody answers is a state, not an error. In a forked
//   child Add says so (kForkedText), and otherwise the set is as if it were empty: nothing of it is touched.
// Bounds: max_streams, and those of each stream. A busy stream does not keep the others of its thread from their turn.
class StreamSet {
 public:
  // Makes a stream's sink, on the thread of Add.
  using SinkFactory = std::function<Result<std::unique_ptr<CheckedSink>>(const StreamAddress& address)>;

  struct Options {
    std::size_t num_threads = 2;  // 1 to 64
    std::size_t max_streams = 4096;
    StreamChecker::Options check;  // of the sinks that nobody else makes; the rank is the address's
    WatchedStream::Options stream;
    SinkFactory make_sink;                // empty: a StreamChecker
    std::shared_ptr<ZmqContext> context;  // null: the process-wide one
  };

  // A stream that was taken out, finished.
  struct Ended {
    StreamFigures figures;
    std::unique_ptr<CheckedSink> sink;
  };

  explicit StreamSet(Options options);
  ~StreamSet();
  StreamSet(const StreamSet&) = delete;
  StreamSet& operator=(const StreamSet&) = delete;

  Status Add(const StreamAddress& address);

  // When it returns, nothing of the stream is left: no socket, no memory. Nothing: there is no such stream.
  std::optional<Ended> Remove(std::string_view name);
  // All of them, in the order of their names.
  std::vector<Ended> RemoveAll();

  // EventStream::Confirm of every stream; their figures say `recovering` until they are answered.
  void Confirm();

  // In the order of their names, as of the last 100 ms.
  std::vector<StreamFigures> Snapshot() const;
  std::size_t size() const;

 private:
  class Worker;
  struct Place {
    std::size_t worker = 0;
    std::shared_ptr<WatchedStream> stream;  // shared with readers of its figures
  };

  std::optional<Place> TakeOut(std::string_view name);
  std::size_t LeastBusy() const;
  Ended End(const Place& place);
  // What it holds open goes. On the stream's thread.
  static Ended Finish(WatchedStream* stream);

  const Options options_;
  const std::shared_ptr<ZmqContext> context_;
  Unforked<std::vector<std::unique_ptr<Worker>>> workers_;
  std::mutex changing_;  // one Add, Remove or Confirm at a time
  mutable std::mutex mutex_;
  Unforked<std::map<std::string, Place, std::less<>>> places_;  // guarded by mutex_
};

}  // namespace kvwire
