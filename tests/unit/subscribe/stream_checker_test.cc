// SPDX-License-Identifier: Apache-2.0
#include "kv_events/subscribe/stream_checker.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/wire/decoder.h"
#include "tests/unit/subscribe/checker_bench.h"

namespace kvwire::test {
namespace {

TEST_CASE("a stream that keeps the rules is clean") {
  Bench bench;
  bench.Store({1, 2, 3});
  bench.Store({4}, 3);
  bench.End();
  bench.Remove({4, 3});
  bench.End();
  bench.Store({5}, 3);  // a parent that was removed since
  bench.End();
  bench.Clear();
  bench.End();
  bench.Store({7});
  bench.End();
  CHECK(bench.violations.empty());
  CHECK(bench.checker.Verdict() == CheckVerdict::kClean);
  CHECK(bench.checker.counts().batches == 5);
  CHECK(bench.checker.counts().blocks_stored == 6);
  CHECK(bench.checker.counts().blocks_removed == 2);
  CHECK(bench.checker.held().size() == 1);
}

TEST_CASE("the verdicts are the exit codes 0 to 3") {
  CHECK(static_cast<int>(CheckVerdict::kClean) == 0);
  CHECK(static_cast<int>(CheckVerdict::kViolated) == 1);
  CHECK(static_cast<int>(CheckVerdict::kIncomplete) == 2);
  CHECK(static_cast<int>(CheckVerdict::kSilent) == 3);
  CHECK(ToString(CheckVerdict::kClean) == "clean");
  CHECK(ToString(CheckVerdict::kViolated) == "violated");
  CHECK(ToString(CheckVerdict::kIncomplete) == "incomplete");
  CHECK(ToString(CheckVerdict::kSilent) == "silent");
}

TEST_CASE("nothing received is silent, never clean") {
  Bench bench;
  CHECK(bench.checker.Verdict() == CheckVerdict::kSilent);
}

TEST_CASE("sequence: a number that does not follow is violated") {
  Bench bench;
  bench.Store({1});
  bench.End();
  bench.number = 3;
  bench.Store({2});
  bench.End();
  CHECK(bench.Only() == CheckRule::kSequence);
}

TEST_CASE("readable: a message, an event and frames that cannot be read are violated") {
  Bench bench;
  SUBCASE("message") {
    bench.Deliver(0, {0x93, 0x01, 0x92});
    CHECK(bench.Only() == CheckRule::kReadable);
    CHECK(bench.checker.counts().undecodable == 1);
    CHECK(bench.violations[0].hex.find("01 92") != std::string::npos);
  }
  SUBCASE("event") {
    // [1.5, [AllBlocksCleared, {"type": "foo"}], 0]
    Bytes payload{0x93, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0x92};
    const Bytes cleared = ToBytes(
        "\x81\xa4type\xb0"
        "AllBlocksCleared");
    const Bytes unknown = ToBytes(
        "\x81\xa4type\xa3"
        "foo");
    payload.insert(payload.end(), cleared.begin(), cleared.end());
    payload.insert(payload.end(), unknown.begin(), unknown.end());
    payload.push_back(0);
    bench.Deliver(0, payload);
    CHECK(bench.Only() == CheckRule::kReadable);
    CHECK(bench.violations[0].event == 1);
    CHECK(bench.violations[0].hex.find("[81 a4") != std::string::npos);
  }
  SUBCASE("frames") {
    bench.checker.OnMalformed(2);
    CHECK(bench.Only() == CheckRule::kReadable);
  }
}

TEST_CASE("token-count: tokens that are not block_size a block are violated, none at all are not") {
  Bench bench;
  bench.Store({1, 2}, std::nullopt, 1);
  bench.End();
  CHECK(bench.Only() == CheckRule::kTokenCount);
  CHECK(bench.violations[0].what == "5 tokens for 2 blocks of 2");

  Bench without;
  const BlockHash block = BlockHash::FromUint64(1);
  BlockStored stored;
  stored.block_hashes = {&block, 1};
  stored.block_size = 16;
  without.batch.Add(stored);
  without.End();
  CHECK(without.checker.Verdict() == CheckVerdict::kClean);
}

TEST_CASE("D8: known-parent: a parent that was never announced is violated") {
  Bench bench;
  bench.Store({1});
  bench.End();
  bench.Store({3}, 2);
  bench.End();
  CHECK(bench.Only() == CheckRule::kKnownParent);
  CHECK(bench.violations[0].sequence == 1);
  CHECK(bench.violations[0].event == 0);
  CHECK(bench.violations[0].block == BlockHash::FromUint64(2));
}

TEST_CASE("an interruption before a life's first message names no message") {
  Bench bench;
  bench.Store({1});
  bench.End();
  bench.checker.OnContinuity(Continuity::kForgotten);
  bench.checker.OnContinuity(Continuity::kInterrupted);
  CHECK(bench.checker.WhyIncomplete() ==
        "the connection to the publisher ended; whether it published more, or began anew, is unknown");
}

TEST_CASE("C8: sequence: an answer that contradicts what came live is violated, and names the message") {
  Bench bench;
  bench.Store({1});
  bench.End();
  bench.checker.OnContradiction(7, Contradiction::kLiveDiffers);
  bench.checker.OnContinuity(Continuity::kForgotten);
  CHECK(bench.Only() == CheckRule::kSequence);
  CHECK(bench.violations[0].sequence == 7);
  CHECK(bench.violations[0].what ==
        "message 7 came live with another content than it has in an answer: the replay address may be another "
        "publisher's");
}

TEST_CASE("known-removal: a removal of what is not held is violated, with the block's last events") {
  Bench bench;
  bench.Store({1, 2});
  bench.End();
  bench.Remove({1});
  bench.End();
  bench.Store({1});
  bench.End();
  bench.Remove({1});
  bench.End();
  bench.Store({9});
  bench.Remove({1});
  bench.End();
  CHECK(bench.Only() == CheckRule::kKnownRemoval);
  const Violation& violation = bench.violations[0];
  CHECK(violation.sequence == 4);
  CHECK(violation.event == 1);
  CHECK(violation.history == std::vector<std::string>{"removed in message 3, event 0", "stored in message 2, event 0",
                                                      "removed in message 1, event 0"});
  CHECK(violation.event_text.find("BlockRemoved block_hashes=[0000000000000001]") == 0);
  // The marked bytes are the second event: a map whose first key is "type".
  CHECK(violation.hex.find('[') != std::string::npos);
  CHECK(violation.hex.find(']') != std::string::npos);
  const std::string text = violation.ToString();
  CHECK(text.find("violated: known-removal: message 4, event 1: block 0000000000000001 is removed and not held") == 0);
}

TEST_CASE("known-removal: another medium or group does not hold the block") {
  Bench bench;
  bench.Store({1}, std::nullopt, 0, "GPU");
  bench.Remove({1}, "CPU");
  bench.End();
  CHECK(bench.Only() == CheckRule::kKnownRemoval);
}

TEST_CASE("clear-empties: a removal after a clear of what was stored before it is violated") {
  Bench bench;
  bench.Store({1});
  bench.End();
  bench.Clear();
  bench.Remove({1});
  bench.End();
  CHECK(bench.Only() == CheckRule::kClearEmpties);
  CHECK(bench.violations[0].history ==
        std::vector<std::string>{"stored in message 0, event 0, before the last AllBlocksCleared"});
}

TEST_CASE("whole-removal: under removals exact a block leaves with all its announcements in one batch") {
  StreamChecker::Options exact;
  exact.removals = Removals::kExact;
  for (const bool whole : {true, false}) {
    Bench bench(exact);
    bench.Store({1});
    bench.Store({1});
    bench.End();
    bench.Remove({1});
    if (whole) bench.Remove({1});
    bench.End();
    if (whole) {
      CHECK(bench.checker.Verdict() == CheckVerdict::kClean);
    } else {
      CHECK(bench.Only() == CheckRule::kWholeRemoval);
    }
  }
  Bench per_copy;
  per_copy.Store({1});
  per_copy.Store({1});
  per_copy.Remove({1});
  per_copy.End();
  CHECK(per_copy.checker.Verdict() == CheckVerdict::kClean);
}

TEST_CASE("a gap that was not closed makes the verdict incomplete for good") {
  Bench bench;
  bench.Store({1});
  bench.End();
  bench.checker.OnGap({1, 3, GapReason::kNotInReplay, false});
  bench.number = 4;
  bench.Store({9}, 8);  // the parent may have been in the gap
  bench.Remove({7});    // so may this block
  bench.End();
  CHECK(bench.violations.empty());
  CHECK(bench.checker.Verdict() == CheckVerdict::kIncomplete);
  CHECK(bench.checker.counts().missing == 3);
  bench.Clear();
  bench.End();
  CHECK(bench.checker.Verdict() == CheckVerdict::kIncomplete);
  bench.Remove({9});
  bench.End();
  CHECK(bench.Only() == CheckRule::kClearEmpties);
}

TEST_CASE("A8: what can follow from a gap is incomplete, once and with the gap as the reason, never violated") {
  StreamChecker::Options exact;
  exact.removals = Removals::kExact;
  Bench bench(exact);
  bench.Store({1});
  bench.Store({1});
  bench.End();
  bench.checker.OnGap({1, 3, GapReason::kNotInReplay, false});
  bench.number = 4;
  SUBCASE("known-removal") { bench.Remove({7}); }
  SUBCASE("known-parent") { bench.Store({9}, 8); }
  SUBCASE("known-parent, after a clear, too: the parent may have come and gone before") {
    bench.Clear();
    bench.Store({9}, 8);
  }
  SUBCASE("whole-removal: a removal may be lost") { bench.Remove({1}); }
  bench.End();
  CHECK(bench.violations.empty());
  CHECK(bench.checker.Verdict() == CheckVerdict::kIncomplete);
  CHECK(bench.checker.counts().violations == 0);
  CHECK(bench.checker.WhyIncomplete() ==
        "messages 1 to 3 are missing (not in the replay); parents and removals not judged because of it: 1");
}

TEST_CASE("a message that cannot be read is violated, once: what can follow from it is not judged") {
  StreamChecker::Options exact;
  exact.removals = Removals::kExact;
  Bench bench(exact);
  bench.Store({1});
  bench.Store({1});
  bench.End();
  bench.Deliver(bench.number++, {0xc1});
  SUBCASE("known-removal") { bench.Remove({7}); }
  SUBCASE("known-parent") { bench.Store({9}, 8); }
  SUBCASE("whole-removal") { bench.Remove({1}); }
  bench.End();
  CHECK(bench.Only() == CheckRule::kReadable);
  CHECK(bench.checker.counts().unjudged == 1);
  bench.checker.OnDisagreement(2, "one block too many");
  CHECK(bench.violations.back().what == "one block too many; cause: message 1 could not be read");
}

TEST_CASE("A8: what a gap cannot be the reason of is violated") {
  StreamChecker::Options exact;
  exact.removals = Removals::kExact;
  Bench bench(exact);
  bench.Store({1});
  bench.End();
  bench.checker.OnGap({1, 3, GapReason::kNotInReplay, false});
  bench.number = 4;
  CheckRule rule = CheckRule::kTokenCount;
  SUBCASE("token-count") { bench.Store({2}, std::nullopt, 1); }
  SUBCASE("clear-empties") {
    bench.Store({2});
    bench.Clear();
    bench.Remove({2});
    rule = CheckRule::kClearEmpties;
  }
  SUBCASE("known-removal, after a clear") {
    bench.Clear();
    bench.Remove({7});
    rule = CheckRule::kKnownRemoval;
  }
  SUBCASE("whole-removal, after a clear") {
    bench.Clear();
    bench.Store({2});
    bench.Store({2});
    bench.Remove({2});
    rule = CheckRule::kWholeRemoval;
  }
  SUBCASE("sequence") {
    bench.number = 9;
    bench.Store({2});
    rule = CheckRule::kSequence;
  }
  SUBCASE("known-parent, in another life") {
    bench.checker.OnRestart(3, 0);
    bench.number = 0;
    bench.Store({9}, 8);
    rule = CheckRule::kKnownParent;
  }
  bench.End();
  CHECK(bench.Only() == rule);
}

TEST_CASE("A8: the reason names the first gap and counts the others") {
  Bench bench;
  bench.Store({1});
  bench.End();
  bench.checker.OnGap({1, 1, GapReason::kNoReplay, false});
  CHECK(bench.checker.WhyIncomplete() == "message 1 is missing (no replay endpoint)");
  bench.checker.OnGap({4, 6, GapReason::kNoAnswer, false});
  CHECK(bench.checker.WhyIncomplete() == "message 1 is missing (no replay endpoint), and 3 more behind it");
  bench.number = 7;
  bench.Remove({5, 6});
  bench.End();
  CHECK(bench.checker.WhyIncomplete() ==
        "message 1 is missing (no replay endpoint), and 3 more behind it; parents and removals not judged because of "
        "it: 2");
}

TEST_CASE("A8: agreement: what the engine says otherwise after a gap is told with the gap as the cause") {
  Bench bench;
  bench.Store({1});
  bench.End();
  SUBCASE("before any gap there is no cause") {
    bench.checker.OnDisagreement(0, "differs");
    CHECK(bench.Only() == CheckRule::kAgreement);
    CHECK(bench.violations[0].what == "differs");
    CHECK(bench.checker.WhyViolated().empty());
  }
  bench.checker.OnGap({1, 3, GapReason::kNotInReplay, false});
  bench.number = 4;
  bench.Store({2});
  bench.End();
  constexpr const char* kCause = "messages 1 to 3 are missing (not in the replay)";
  SUBCASE("at a number behind it") {
    bench.checker.OnDisagreement(4, "differs");
    CHECK(bench.Only() == CheckRule::kAgreement);
    CHECK(bench.violations[0].what == std::string("differs; cause: ") + kCause);
    CHECK(bench.checker.WhyViolated() == kCause);
    SUBCASE("unless something else is violated, too") {
      bench.Store({5}, std::nullopt, 1);
      bench.End();
      CHECK(bench.checker.WhyViolated().empty());
    }
  }
  SUBCASE("not at a number before it") {
    bench.checker.OnDisagreement(0, "differs");
    CHECK(bench.violations.back().what == "differs");
    CHECK(bench.checker.WhyViolated().empty());
  }
  SUBCASE("not at a number behind a clear that follows it") {
    bench.Clear();
    bench.End();
    bench.checker.OnDisagreement(4, "late");
    bench.checker.OnDisagreement(5, "differs");
    CHECK(bench.violations[bench.violations.size() - 2].what == std::string("late; cause: ") + kCause);
    CHECK(bench.violations.back().what == "differs");
    CHECK(bench.checker.WhyViolated().empty());
  }
}

TEST_CASE("a gap that was closed leaves the verdict clean") {
  Bench bench;
  bench.checker.OnRecovery(0, 0);
  bench.Store({1});
  bench.End();
  bench.checker.OnHealed(0, 0);
  CHECK(bench.checker.Verdict() == CheckVerdict::kClean);
  CHECK(bench.checker.counts().healed == 1);
}

TEST_CASE("a late join is incomplete until everything is cleared") {
  Bench bench;
  bench.checker.OnGap({0, 4, GapReason::kNoReplay, true});
  bench.number = 5;
  bench.Remove({7});
  bench.Store({9}, 8);
  bench.End();
  CHECK(bench.checker.Verdict() == CheckVerdict::kIncomplete);
  CHECK_FALSE(bench.checker.synchronised());
  bench.Clear();
  bench.End();
  CHECK(bench.checker.synchronised());
  CHECK(bench.checker.Verdict() == CheckVerdict::kClean);
  // Its parent may have come and gone before.
  bench.Store({11}, 10);
  bench.End();
  CHECK(bench.violations.empty());
  CHECK(bench.checker.counts().unjudged == 1 + 1);  // before and behind the clear
  bench.Remove({12});
  bench.End();
  CHECK(bench.Only() == CheckRule::kKnownRemoval);
}

TEST_CASE("a restart begins with nothing") {
  Bench bench;
  bench.Store({1, 2});
  bench.End();
  bench.checker.OnRestart(0, 0);
  CHECK(bench.checker.held().size() == 0);
  bench.number = 0;
  bench.Store({1});
  bench.End();
  CHECK(bench.checker.Verdict() == CheckVerdict::kClean);
  bench.Store({3}, 2);
  bench.End();
  CHECK(bench.Only() == CheckRule::kKnownParent);
}

TEST_CASE("what is not known to be all is incomplete until the publisher confirms it or begins anew") {
  using C = Continuity;
  struct Row {
    std::vector<C> said;
    CheckVerdict verdict;
    CheckVerdict after_restart;
  };
  constexpr CheckVerdict kClean = CheckVerdict::kClean;
  constexpr CheckVerdict kIncomplete = CheckVerdict::kIncomplete;
  const std::vector<Row> rows{
      {{}, kClean, kClean},
      {{C::kConfirmed}, kClean, kClean},
      {{C::kUnconfirmed}, kIncomplete, kClean},
      {{C::kUnconfirmed, C::kConfirmed}, kClean, kClean},
      {{C::kInterrupted}, kIncomplete, kClean},
      {{C::kInterrupted, C::kConfirmed}, kClean, kClean},
      {{C::kInterrupted, C::kUnconfirmed}, kIncomplete, kClean},
      {{C::kInterrupted, C::kUnconfirmed, C::kConfirmed}, kClean, kClean},
      {{C::kSeveral}, kIncomplete, kIncomplete},
      {{C::kSeveral, C::kConfirmed}, kIncomplete, kIncomplete},
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(i);
    Bench bench;
    bench.checker.OnContinuity(C::kUnconfirmed);  // before the first message it says nothing about it
    bench.Store({1});
    bench.End();
    for (const C said : rows[i].said) bench.checker.OnContinuity(said);
    CHECK(bench.checker.Verdict() == rows[i].verdict);
    CHECK(bench.checker.WhyIncomplete().empty() == (rows[i].verdict == kClean));
    bench.checker.OnRestart(0, std::nullopt);
    bench.number = 0;
    bench.Store({2});
    bench.End();
    CHECK(bench.checker.Verdict() == rows[i].after_restart);
  }
}

TEST_CASE("what could not be told from another life is void, as after a restart") {
  Bench bench;
  bench.Store({1, 2});
  bench.End();
  bench.checker.OnContinuity(Continuity::kInterrupted);
  bench.checker.OnContinuity(Continuity::kForgotten);
  CHECK(bench.checker.held().size() == 0);
  CHECK(bench.checker.counts().restarts == 0);
  SUBCASE("known again from its beginning it is clean") {
    bench.number = 0;
    bench.Store({1});
    bench.End();
    CHECK(bench.checker.Verdict() == CheckVerdict::kClean);
  }
  SUBCASE("not known from its beginning it is incomplete") {
    bench.checker.OnGap({0, 6, GapReason::kNoAnswer, true});
    bench.number = 7;
    bench.Remove({1});
    bench.End();
    CHECK(bench.violations.empty());
    CHECK(bench.checker.Verdict() == CheckVerdict::kIncomplete);
  }
  SUBCASE("and a new life whose messages nobody confirms is incomplete") {
    bench.checker.OnContinuity(Continuity::kUnconfirmed);
    CHECK(bench.checker.Verdict() == CheckVerdict::kIncomplete);
  }
}

TEST_CASE("text of a foreign stream cannot forge a line of a violation") {
  Bench bench;
  const BlockHash hash = BlockHash::FromUint64(7);
  BlockRemoved removed;
  removed.block_hashes = {&hash, 1};
  removed.medium = "x\nverdict: clean\x1b[2J";
  bench.batch.Add(removed);
  bench.End();
  REQUIRE(bench.violations.size() == 1);
  CHECK(bench.violations[0].what.find('\n') == std::string::npos);
  CHECK(bench.violations[0].what.find('\x1b') == std::string::npos);
}

TEST_CASE("while a connection is lost, parents and removals are not judged") {
  Bench bench;
  bench.Store({1});
  bench.End();
  bench.checker.OnContinuity(Continuity::kInterrupted);
  bench.Remove({7});
  bench.Store({9}, 8);
  bench.End();
  CHECK(bench.violations.empty());
  CHECK_FALSE(bench.checker.synchronised());
  CHECK(bench.checker.counts().interruptions == 1);
  bench.checker.OnContinuity(Continuity::kConfirmed);
  bench.Remove({7});
  bench.End();
  CHECK(bench.Only() == CheckRule::kKnownRemoval);
}

TEST_CASE("all violations are counted and the first ones explained") {
  StreamChecker::Options options;
  options.max_reports = 2;
  Bench bench(options);
  for (int i = 0; i < 5; ++i) bench.Remove({1});
  bench.End();
  CHECK(bench.violations.size() == 2);
  CHECK(bench.checker.counts().violations == 5);
}

TEST_CASE("C9: blocks whose parents are gone may stand anywhere in a walk, and have children afterwards") {
  Bench bench;
  SUBCASE("a snapshot") {
    bench.number = 7;
    bench.checker.OnSnapshotBegin(7);
    const auto chunk = [&bench] {
      bench.checker.OnSnapshotChunk(7, *DecodeBatch(Encode(bench.batch)));
      bench.batch.Clear();
    };
    bench.Store({15}, 14);
    bench.Store({1});
    bench.Store({19}, 18);
    chunk();
    bench.Store({25, 26}, 24);
    bench.Store({2}, 1);
    chunk();
    bench.checker.OnSnapshotEnd(7, std::nullopt);
  }
  SUBCASE("a resync, seen from the beginning") {
    bench.Store({14, 15});
    bench.Store({18, 19});
    bench.Store({24, 25, 26});
    bench.Remove({14, 18, 24});
    bench.End();
    bench.Clear();
    bench.Store({15}, 14);
    bench.Store({1});
    bench.Store({19}, 18);
    bench.End();
    bench.Store({25, 26}, 24);
    bench.Store({2}, 1);
    bench.End();
  }
  SUBCASE("a resync, joined at its clear") {
    bench.number = 7;
    bench.checker.OnGap({0, 6, GapReason::kNotInReplay, true});
    bench.Clear();
    bench.Store({15}, 14);
    bench.Store({1});
    bench.Store({19}, 18);
    bench.Store({25, 26}, 24);
    bench.Store({2}, 1);
    bench.End();
  }
  bench.Store({16}, 15);
  bench.Store({3}, 2);
  bench.Store({14});  // comes back behind its child
  bench.Remove({19, 26});
  bench.End();
  CHECK(bench.violations.empty());
  CHECK(bench.checker.held().size() == 7);
}

}  // namespace
}  // namespace kvwire::test
