// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/worker_pool.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/stream_support.h"
#include "tests/support/watchdog.h"

namespace kvwire::test {
namespace {

using engine::WorkerPool;

TEST_CASE("jobs that wait for each other run at the same time, up to the bound; so many wait, and more are refused") {
  WorkerPool pool({3, 2, std::chrono::milliseconds(10000)});
  std::promise<void> go_on;
  const std::shared_future<void> may_go_on = go_on.get_future().share();
  std::atomic<int> running{0};
  std::atomic<int> done{0};
  const auto job = [&running, &done, may_go_on] {
    ++running;
    may_go_on.wait();
    ++done;
  };
  for (int i = 0; i < 3; ++i) CHECK(pool.Submit(job));
  CHECK(Eventually([&] { return running == 3; }));
  CHECK_FALSE(pool.has_waiting());
  CHECK(pool.Submit(job));
  CHECK(pool.has_waiting());
  CHECK(pool.Submit(job));
  CHECK_FALSE(pool.Submit(job));
  CHECK(running == 3);
  go_on.set_value();
  CHECK(Eventually([&] { return done == 5; }));
  CHECK(Eventually([&] { return pool.Submit([] {}); }));
}

TEST_CASE("jobs that come all at once fill the bounds, however late their threads begin") {
  constexpr std::size_t kEach = 8;
  for (int round = 0; round < 20; ++round) {
    std::promise<void> end;
    const std::shared_future<void> ended = end.get_future().share();
    WorkerPool pool({kEach, kEach});
    std::size_t taken = 0;
    for (std::size_t i = 0; i < 3 * kEach; ++i) taken += pool.Submit([ended] { ended.wait(); }) ? 1 : 0;
    CHECK(taken == 2 * kEach);
    CHECK(pool.has_waiting());
    end.set_value();
  }
}

TEST_CASE("threads do one job after the other") {
  WorkerPool pool({8, 8, std::chrono::milliseconds(10000)});
  std::mutex mutex;
  std::set<std::thread::id> ids;
  const auto run = [&] {
    const auto done = std::make_shared<std::promise<void>>();
    CHECK(pool.Submit([&mutex, &ids, done] {
      {
        const std::lock_guard<std::mutex> lock(mutex);
        ids.insert(std::this_thread::get_id());
      }
      done->set_value();
    }));
    done->get_future().wait();
  };
  for (int i = 0; i < 100; ++i) run();
  CHECK(ids.size() < 50);
}

TEST_CASE("a stop runs what waits, takes nothing more, and may come twice") {
  std::atomic<int> done{0};
  WorkerPool pool({1, 100, std::chrono::milliseconds(10000)});
  for (int i = 0; i < 50; ++i) CHECK(pool.Submit([&] { ++done; }));
  const Watchdog watchdog("Stop");
  pool.Stop();
  CHECK(done == 50);
  CHECK_FALSE(pool.Submit([&] { ++done; }));
  pool.Stop();
}

TEST_CASE("many threads may submit at once") {
  std::atomic<int> done{0};
  std::atomic<int> taken{0};
  {
    WorkerPool pool({16, 16, std::chrono::milliseconds(1)});
    std::vector<std::thread> submitters;
    for (int i = 0; i < 8; ++i) {
      submitters.emplace_back([&] {
        for (int k = 0; k < 500; ++k) taken += pool.Submit([&] { ++done; }) ? 1 : 0;
      });
    }
    for (std::thread& submitter : submitters) submitter.join();
  }
  CHECK(taken > 0);
  CHECK(done == taken);
}

}  // namespace
}  // namespace kvwire::test
