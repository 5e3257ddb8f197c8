// SPDX-License-Identifier: Apache-2.0
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/stream_support.h"
#include "wire_test_support.h"

namespace kvwire {

namespace {

// Records the events of `source` into *batch, as a host does into a batch that was used before.
void Record(const KVEventBatch& source, KVEventBatch* batch) {
  REQUIRE(batch->empty());
  batch->ts = source.ts;
  batch->data_parallel_rank = source.data_parallel_rank;
  source.Visit([batch](const auto& event) { batch->Add(event); });
}

}  // namespace

TEST_CASE("the payload that is published, and replayed, is what the encoder makes of the batch") {
  std::mt19937_64 random(20260607);
  for (const std::string& profile : AllProfiles()) {
    CAPTURE(profile);
    const KVEventsConfig::Extensions switches = SwitchesOf(profile);
    test::MemoryRig rig;
    test::AgentSettings settings;
    settings.layout = switches.replay_layout;
    settings.encode = [encoder = BatchEncoder(switches)](const KVEventBatch& batch, Bytes* out) {
      encoder.Encode(batch, out);
    };
    test::DrivenPublisher publisher(settings, rig.publish(), rig.replay());
    const auto subscriber = rig.Subscribe("test");
    const auto dealer = rig.Dealer("d");

    std::vector<Bytes> expected;
    for (int round = 0; round < 40; ++round) {
      const KVEventBatch batch = RandomBatch(&random);
      KVEventBatch next = publisher.queue.TakeSpare();
      Record(batch, &next);
      REQUIRE(publisher.Publish(std::move(next)) == PublishResult::kAccepted);
      expected.push_back(Encode(batch, switches));
      const std::vector<test::Live> live = publisher.ReadLive(subscriber.get(), 1);
      REQUIRE(live.size() == 1);
      CHECK(ToHex(live[0].payload) == ToHex(expected.back()));
    }
    const std::vector<test::Replayed> replayed = publisher.Replay(dealer.get(), 0);
    REQUIRE(replayed.size() == expected.size() + 1);
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(replayed[i].payload == expected[i]);
  }
}

}  // namespace kvwire
