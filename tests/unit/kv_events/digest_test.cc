// SPDX-License-Identifier: Apache-2.0
#include "kv_events/digest.h"

#include <cstddef>
#include <cstdint>

#include <doctest/doctest.h>

namespace kvwire {
namespace {

TEST_CASE("An empty digest has no entries") {
  const StateDigest digest;
  CHECK(digest.entries().empty());
  CHECK(digest.ToString() == "empty");
}

TEST_CASE("An entry counts hashes and sums their mixed bits") {
  StateDigest digest;
  digest.Add(0, "GPU", 1);
  digest.Add(0, "GPU", 2);
  REQUIRE(digest.entries().size() == 1);
  CHECK(digest.entries()[0] == StateDigest::Entry{0, "GPU", 2, StateDigest::Mix(1) + StateDigest::Mix(2)});
}

TEST_CASE("The mixing function is the published one") {
  // splitmix64's outputs for the seeds 0 and 1: both ends of a stream must agree on them.
  CHECK(StateDigest::Mix(0) == 0xe220a8397b1dcdafu);
  CHECK(StateDigest::Mix(1) == 0x910a2dec89025cc1u);
}

TEST_CASE("A digest does not depend on the order of changes") {
  StateDigest forward;
  StateDigest backward;
  for (std::uint64_t i = 0; i < 100; ++i) forward.Add(i % 3 == 0 ? 1 : 0, i % 2 == 0 ? "GPU" : "CPU", i * 7919);
  for (std::uint64_t i = 100; i-- > 0;) backward.Add(i % 3 == 0 ? 1 : 0, i % 2 == 0 ? "GPU" : "CPU", i * 7919);
  CHECK(forward == backward);
  CHECK(forward.ToString() == backward.ToString());
  CHECK(forward.entries().size() == 4);
}

TEST_CASE("A removal takes back its addition, and a group that was emptied is as one never seen") {
  StateDigest digest;
  digest.Add(0, "GPU", 5);
  StateDigest before = digest;
  digest.Add(3, "CPU", 9);
  CHECK(digest != before);
  digest.Remove(3, "CPU", 9);
  CHECK(digest == before);
  digest.Remove(0, "GPU", 5);
  CHECK(digest == StateDigest());
  CHECK(digest.ToString() == "empty");
}

TEST_CASE("A change at the slot of a group and medium is one of that group and medium") {
  StateDigest by_name;
  StateDigest by_slot;
  const std::size_t gpu = by_slot.SlotOf(2, "gpu");
  const std::size_t cpu = by_slot.SlotOf(2, "CPU");
  CHECK(by_slot == StateDigest());
  CHECK(by_slot.SlotOf(2, "GPU") == gpu);
  for (std::uint64_t low64 = 1; low64 < 5; ++low64) {
    by_name.Add(2, "GPU", low64);
    by_slot.Add(gpu, low64);
    by_slot.Add(cpu, low64);
  }
  by_name.Add(2, "CPU", 4);
  for (std::uint64_t low64 = 1; low64 < 4; ++low64) by_slot.Remove(cpu, low64);
  CHECK(by_slot == by_name);
}

TEST_CASE("Equal counts with other hashes are another digest") {
  StateDigest a;
  StateDigest b;
  a.Add(0, "GPU", 1);
  b.Add(0, "GPU", 2);
  CHECK(a != b);
}

TEST_CASE("Groups and media are kept apart") {
  StateDigest gpu;
  StateDigest cpu;
  StateDigest other_group;
  gpu.Add(0, "GPU", 1);
  cpu.Add(0, "CPU", 1);
  other_group.Add(1, "GPU", 1);
  CHECK(gpu != cpu);
  CHECK(gpu != other_group);
}

TEST_CASE("Media are compared in upper case, and no medium is GPU") {
  StateDigest spelled;
  StateDigest lower;
  StateDigest absent;
  spelled.Add(0, "GPU", 1);
  lower.Add(0, "gpu", 1);
  absent.Add(0, "", 1);
  CHECK(spelled == lower);
  CHECK(spelled == absent);
  CHECK(CanonicalMedium("") == "GPU");
  CHECK(CanonicalMedium("Cpu_Pinned2") == "CPU_PINNED2");
}

TEST_CASE("Entries are ordered by group, then medium, and printed in that order") {
  StateDigest digest;
  digest.Add(1, "CPU", 1);
  digest.Add(0, "GPU", 0);
  digest.Add(0, "CPU", 0);
  CHECK(digest.ToString() == "0/CPU 1:e220a8397b1dcdaf 0/GPU 1:e220a8397b1dcdaf 1/CPU 1:910a2dec89025cc1");
}

TEST_CASE("Clear forgets everything and the digest can be used again") {
  StateDigest digest;
  digest.Add(0, "GPU", 1);
  digest.Add(1, "CPU", 2);
  digest.Clear();
  CHECK(digest == StateDigest());
  digest.Add(0, "GPU", 3);
  CHECK(digest.entries()[0].count == 1);
}

TEST_CASE("a medium that is cleared is empty in every group, and the others are as before") {
  StateDigest digest;
  digest.Add(0, "cpu", 1);
  digest.Add(1, "CPU", 2);
  digest.Add(0, "GPU", 3);
  CHECK_FALSE(digest.empty());
  StateDigest other;
  other.Add(0, "GPU", 3);
  digest.ClearMedium("CPU");
  CHECK(digest == other);
  digest.ClearMedium("");
  CHECK(digest.empty());
  CHECK(StateDigest().empty());
}

}  // namespace
}  // namespace kvwire
