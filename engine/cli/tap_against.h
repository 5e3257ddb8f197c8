// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/http/http_call.h"
#include "kv_events/clock.h"
#include "kv_events/error.h"
#include "kv_events/subscribe/held_blocks.h"
#include "kv_events/wire/frames.h"

namespace kvwire::engine {

// What an engine says of itself (GET /kv/state): what it holds as of a message's number.
struct EngineTruth {
  std::optional<SequenceNumber> batch;
  std::string life;  // another one after a restart; empty: the engine does not say
  std::string digest;
  std::optional<std::vector<std::string>> blocks;  // lines as HeldBlocks::Dump writes them, if asked for
};

// Asks an engine for its state, on a thread of its own, one question at a time.
// Threads: one, that of the owner. Errors: a question that was not answered is an empty answer with the reason.
// Bounds: a question takes 10 s in all, looking up the name and connecting included; an answer has a head of 64 KiB, a
//   body of 64 MiB and 32 levels. The destructor ends a running question soon.
class TruthClient {
 public:
  struct Answer {
    std::optional<EngineTruth> truth;
    std::string problem;
  };

  // `url`: http://HOST:PORT, an IPv6 host in brackets. Errors: name the flag and what is allowed.
  static Result<std::unique_ptr<TruthClient>> Create(const std::string& url, std::int64_t rank);
  ~TruthClient();
  TruthClient(const TruthClient&) = delete;
  TruthClient& operator=(const TruthClient&) = delete;

  enum class Detail : std::uint8_t { kDigest, kBlocks };

  // REQUIRES: idle().
  void Ask(Detail detail);
  bool idle() const noexcept { return !asked_; }
  std::int64_t rank() const noexcept { return rank_; }
  // The answer to the last question, once.
  std::optional<Answer> TryTake();

 private:
  TruthClient(HttpCall call, std::int64_t rank);
  void Loop();
  Answer Fetch(Detail detail);

  const HttpCall call_;  // without its path
  const std::int64_t rank_;
  bool asked_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Detail> question_;  // guarded by mutex_, as the next one
  std::optional<Answer> answer_;
  std::atomic<bool> stopping_ = false;  // set with mutex_ held
  std::thread thread_;
};

// Holds a stream against the engine behind it, at the same numbers.
//
// The engine's digest as of number N is compared with what the stream said up to N, whichever comes first. After a
// disagreement, and at the end, the sets themselves are compared at one number.
//
// Numbers of two lives of an engine say nothing about each other, and a stream does not name its life, so an answer
// counts only if it can be of the stream's: asked for since the stream last began anew; not behind what the stream
// said by then, for an engine never is; of the life that was compared first since. A disagreement is said once a later
// answer shows that the engine still lives this life, when the stream has had time to tell of a restart.
//
// Threads: one thread.
// Bounds: remembers the digests of the last 65,536 messages; a comparison with an older one is counted as missed.
class AgainstEngine {
 public:
  struct Disagreement {
    SequenceNumber number = 0;
    std::string what;
  };
  struct Counts {
    std::uint64_t agreed = 0;
    std::uint64_t disagreed = 0;
    std::uint64_t missed = 0;  // the answer was about a number that is no longer remembered, or of another life
    std::uint64_t unanswered = 0;
    std::string problem;      // why the last one was
    bool other_life = false;  // the engine has begun anew, and the stream does not say so
  };

  AgainstEngine(std::unique_ptr<TruthClient> client, const HeldBlocks* held);

  // The stream has been applied up to this number. `rank`: the data-parallel one of the batch, if it names one.
  void OnApplied(SequenceNumber number, std::optional<std::int64_t> rank);
  // What was applied is void, and so is what the engine was asked until now.
  void OnRestart();

  // One look: asks, compares. At most one disagreement a call.
  std::optional<Disagreement> DoWork(MonotonicNanos now);

  // Asks for the whole set once more and compares it; DoWork until finished().
  void Finish();
  bool finished() const noexcept {
    return finishing_ && !wants_blocks_ && !pending_ && !suspected() && proven_.empty() && client_->idle();
  }

  // What the end lacks while it is not finished(); else nothing.
  std::string WhyUnfinished() const;

  // Says which ranks are compared, if they are known to differ; else nothing.
  std::string WhyRanksDiffer() const;

  const Counts& counts() const noexcept { return counts_; }

 private:
  struct Remembered {
    SequenceNumber number = 0;
    std::string digest;
  };

  // Disagreements until they are proven.
  struct Suspicion {
    std::uint64_t comparisons = 0;
    bool explained = false;
    std::vector<Disagreement> to_say;
  };

  void Take(TruthClient::Answer answer);
  bool CanBeOfThisLife(const EngineTruth& truth);
  void Compare();
  void Suspect(const EngineTruth& truth, const Remembered& ours);
  void Prove();
  void Acquit();
  bool suspected() const noexcept { return suspicion_.comparisons > 0; }
  std::string FirstDifference(const std::vector<std::string>& theirs) const;

  const std::unique_ptr<TruthClient> client_;
  const HeldBlocks* const held_;
  std::optional<std::int64_t> rank_;    // of the last batch that named one
  std::deque<Remembered> remembered_;   // ascending
  std::optional<EngineTruth> pending_;  // until the stream has come as far
  MonotonicNanos next_question_ = 0;

  MonotonicNanos last_look_ = 0;
  MonotonicNanos attended_ = 0;               // time in which the stream was looked at
  std::optional<SequenceNumber> asked_at_;    // what was applied when the engine was asked last
  bool question_void_ = false;                // the stream has begun anew since
  std::optional<std::string> life_;           // the one that the stream is compared with, until it begins anew
  MonotonicNanos life_since_ = 0;             // attended_ at the first comparison
  std::optional<std::string> not_this_life_;  // the engine's, which the stream has not come to yet
  Suspicion suspicion_;
  std::deque<Disagreement> proven_;  // to be said, one a call

  bool wants_blocks_ = false;
  bool explained_ = false;
  bool finishing_ = false;
  Counts counts_;
};

}  // namespace kvwire::engine
