// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kv_events/config.h"
#include "kv_events/publish/factory.h"
#include "tests/integration/tap/live_source.h"
#include "tests/support/temp_dir.h"

namespace kvwire::test {

// An instance of `dp_size` ranks at addresses by the producer's rule, of which some are there and have published a
// block each.
class Instance {
 public:
  Instance(const TempDir& dir, std::int64_t dp_size, const std::vector<std::int64_t>& ranks)
      : endpoint_("ipc://" + dir / "events"), replay_endpoint_("ipc://" + dir / "replay") {
    KVEventsConfig config;
    config.enable_kv_cache_events = true;
    config.endpoint = endpoint_;
    config.replay_endpoint = replay_endpoint_;
    for (const std::int64_t rank : ranks) {
      PublisherOptions options;
      options.data_parallel_rank = rank;
      options.dp_size = dp_size;
      auto publisher = CreateEventPublisher(config, options);
      REQUIRE(publisher.has_value());
      publishers_.push_back(*std::move(publisher));
    }
    PublishAll(StoreBatch(1, std::nullopt));
  }

  void PublishAll(const KVEventBatch& batch) {
    for (const auto& publisher : publishers_) {
      REQUIRE(publisher->Publish(KVEventBatch(batch)) == PublishResult::kAccepted);
    }
  }

  const std::string& endpoint() const { return endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }

 private:
  const std::string endpoint_;
  const std::string replay_endpoint_;
  std::vector<std::unique_ptr<EventPublisher>> publishers_;
};

}  // namespace kvwire::test
