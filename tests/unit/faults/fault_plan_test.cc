// SPDX-License-Identifier: Apache-2.0
#include "engine/faults/fault_plan.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

namespace kvwire::test {
namespace {

using engine::Fault;
using engine::FaultKind;
using engine::FaultPlace;
using engine::FaultPlan;
using engine::FaultScript;

std::shared_ptr<const FaultScript> Script(const std::string& json) {
  auto script = FaultScript::FromJson(json);
  REQUIRE_MESSAGE(script.has_value(), script.error().message);
  return std::make_shared<const FaultScript>(*std::move(script));
}

// The numbers below `end` with which something happens.
std::vector<SequenceNumber> Hits(FaultPlan* plan, SequenceNumber end) {
  std::vector<SequenceNumber> hits;
  for (SequenceNumber number = 0; number < end; ++number) {
    if (!plan->Decide(number).empty()) hits.push_back(number);
  }
  return hits;
}

std::vector<SequenceNumber> HitsOf(const std::string& json, SequenceNumber end) {
  FaultPlan plan(FaultPlace::kLink);
  plan.Set(Script(json));
  return Hits(&plan, end);
}

using Numbers = std::vector<SequenceNumber>;

TEST_CASE("at, every and count say with which numbers a fault happens") {
  CHECK(HitsOf(R"({"faults":[{"kind":"drop","at":3}]})", 10) == Numbers{3});
  CHECK(HitsOf(R"({"faults":[{"kind":"drop","every":4}]})", 10) == Numbers{0, 4, 8});
  CHECK(HitsOf(R"({"faults":[{"kind":"drop","every":1,"count":3}]})", 10) == Numbers{0, 1, 2});
  CHECK(HitsOf(R"({"faults":[{"kind":"drop","probability":0}]})", 1000).empty());
  CHECK(HitsOf(R"({"faults":[{"kind":"drop","probability":1}]})", 5) == Numbers{0, 1, 2, 3, 4});
  CHECK(HitsOf(R"({"faults":[{"kind":"overflow","every":1}]})", 10).empty());
}

TEST_CASE("chance is of the script's making: the same again, another with another seed, as often as it says") {
  const std::string fault = R"({"kind":"drop","probability":0.1})";
  const Numbers one = HitsOf("{\"seed\":1,\"faults\":[" + fault + "]}", 20'000);
  CHECK(one == HitsOf("{\"seed\":1,\"faults\":[" + fault + "]}", 20'000));
  CHECK(one != HitsOf("{\"seed\":2,\"faults\":[" + fault + "]}", 20'000));
  CHECK(one.size() > 1800);
  CHECK(one.size() < 2200);
  // Two faults with one probability are independent: together about 19 of 100.
  const Numbers both = HitsOf("{\"seed\":1,\"faults\":[" + fault + "," + fault + "]}", 20'000);
  CHECK(both.size() > 3500);
  CHECK(both.size() < 4100);
  const Numbers limited = HitsOf(R"({"seed":1,"faults":[{"kind":"drop","probability":0.1,"count":5}]})", 20'000);
  CHECK(limited == Numbers(one.begin(), one.begin() + 5));
}

TEST_CASE("what happens with a number does not depend on which numbers came before") {
  FaultPlan whole(FaultPlace::kLink);
  FaultPlan sparse(FaultPlace::kLink);
  const auto script = Script(R"({"seed":9,"faults":[{"kind":"drop","probability":0.3}]})");
  whole.Set(script);
  sparse.Set(script);
  for (SequenceNumber number = 0; number < 1000; ++number) {
    const bool happens = !whole.Decide(number).empty();
    if (number % 3 == 0) CHECK(happens == !sparse.Decide(number).empty());
  }
}

TEST_CASE("asked again for a number, the answer is the same and counts once") {
  FaultPlan plan(FaultPlace::kLink);
  plan.Set(Script(R"({"faults":[{"kind":"drop","every":1,"count":2},{"kind":"duplicate","at":5}]})"));
  CHECK(plan.Decide(4).size() == 1);
  CHECK(plan.Decide(4).size() == 1);
  const FaultPlan::Due due = plan.Decide(5);
  REQUIRE(due.size() == 2);
  CHECK(due[0]->kind == FaultKind::kDrop);
  CHECK(due[1]->kind == FaultKind::kDuplicate);
  CHECK(plan.Decide(6).empty());
}

TEST_CASE("a fault at a number happens once, whatever life the number comes in") {
  FaultPlan plan(FaultPlace::kLink);
  plan.Set(Script(R"({"faults":[{"kind":"drop","at":1}]})"));
  CHECK(Hits(&plan, 2) == Numbers{1});
  plan.BeginLife();
  CHECK(Hits(&plan, 2).empty());
}

TEST_CASE("a new script begins anew with the next number, and no script is no faults") {
  FaultPlan plan(FaultPlace::kLink);
  CHECK(plan.Decide(0).empty());
  const auto script = Script(R"({"faults":[{"kind":"drop","every":1,"count":1}]})");
  plan.Set(script);
  CHECK_FALSE(plan.Decide(1).empty());
  CHECK(plan.Decide(2).empty());
  plan.Set(script);
  CHECK_FALSE(plan.Decide(3).empty());
  plan.Set(nullptr);
  CHECK(plan.Decide(4).empty());
}

TEST_CASE("batches that faults made meet only the faults at their very number") {
  FaultPlan plan(FaultPlace::kEngine);
  plan.Set(Script(R"({"faults":[{"kind":"reset","every":1},{"kind":"preempt","at":7}]})"));
  CHECK(plan.DecideAt(6).empty());
  const FaultPlan::Due due = plan.DecideAt(7);
  REQUIRE(due.size() == 1);
  CHECK(due[0]->kind == FaultKind::kPreempt);
  CHECK(plan.DecideAt(7).empty());
  CHECK(plan.Decide(8).size() == 1);
}

TEST_CASE("scripts are replaced from several threads while numbers are asked for") {
  FaultPlan plan(FaultPlace::kLink);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      const auto script = Script(R"({"faults":[{"kind":"drop","every":2}]})");
      do plan.Set(script);
      while (!over.load());
    });
  }
  SequenceNumber wrong = 0;
  for (SequenceNumber number = 0; number < 100'000; ++number) {
    if (number % 2 == 1 && !plan.Decide(number).empty()) ++wrong;
  }
  over.store(true);
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK_FALSE(plan.Decide(100'000).empty());
}

}  // namespace
}  // namespace kvwire::test
