// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/stream_metrics.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "kv_events/subscribe/rank_group.h"

namespace kvwire::engine {
namespace {

bool Has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::size_t LinesOf(const std::string& text, const std::string& name) {
  std::size_t lines = 0;
  for (std::size_t at = text.find("\n" + name); at != std::string::npos; at = text.find("\n" + name, at + 1)) ++lines;
  return lines;
}

StreamFigures Figures(const std::string& name) {
  StreamFigures figures;
  figures.address.name = name;
  return figures;
}

TEST_CASE("without streams there is a count of them, and nothing of any") {
  const std::string text = StreamMetricsText({}, 0);
  CHECK(Has(text, "\nkvwire_streams 0\n"));
  CHECK(LinesOf(text, "kvwire_stream_state{") == 0);
}

TEST_CASE("ages and states are those of the moment of the question") {
  StreamFigures figures = Figures("a");
  figures.status = {StreamState::kSuspect, "the connection ended"};
  figures.status_since = 1'000'000'000;
  figures.last_message_at = 500'000'000;
  const std::string text = StreamMetricsText({&figures, 1}, 4'000'000'000);
  CHECK(Has(text, "kvwire_stream_state{stream=\"a\",state=\"suspect\"} 1\n"));
  CHECK(Has(text, "kvwire_stream_state{stream=\"a\",state=\"synchronised\"} 0\n"));
  CHECK(Has(text, "kvwire_stream_state_seconds{stream=\"a\"} 3\n"));
  CHECK(Has(text, "kvwire_stream_last_message_age_seconds{stream=\"a\"} 3.5\n"));
  // Nothing came of this one.
  const StreamFigures silent = Figures("b");
  CHECK(LinesOf(StreamMetricsText({&silent, 1}, 0), "kvwire_stream_last_message_age_seconds{") == 0);
}

TEST_CASE("a stream's rank is a label where its address says one, and each rank of an instance is there or missing") {
  StreamFigures figures = Figures("engine-a");
  CHECK_FALSE(Has(StreamMetricsText({&figures, 1}, 0), "dp_rank"));
  figures.address = AsRank(figures.address, 1);
  figures.address.dp_size = 2;
  figures.connected = true;
  figures.blocks.push_back({0, "GPU", 2, 0});
  const std::string text = StreamMetricsText({&figures, 1}, 0);
  CHECK(Has(text, "kvwire_stream_next_sequence{stream=\"engine-a#1\",dp_rank=\"1\"} 0\n"));
  CHECK(Has(text, "kvwire_stream_blocks{stream=\"engine-a#1\",dp_rank=\"1\",group=\"0\",medium=\"GPU\"} 2\n"));
  CHECK(Has(text, "kvwire_stream_rank_missing{engine=\"engine-a\",dp_rank=\"0\"} 1\n"));
  CHECK(Has(text, "kvwire_stream_rank_missing{engine=\"engine-a\",dp_rank=\"1\"} 0\n"));
}

TEST_CASE("whatever a stream names, its lines are few and no two are the same") {
  StreamFigures figures = Figures("a");
  for (std::uint32_t group = 0; group < 1000; ++group) {
    figures.blocks.push_back({group, group == 3 ? std::string(1000, 'X') : "GPU", 2, 0});
  }
  const std::string text = StreamMetricsText({&figures, 1}, 0);
  CHECK(LinesOf(text, "kvwire_stream_blocks{") == kMaxShelves);  // one of them is too long, and "other" is one
  CHECK(Has(text, "kvwire_stream_blocks{stream=\"a\",group=\"15\",medium=\"GPU\"} 2\n"));
  CHECK(Has(text, fmt::format("kvwire_stream_blocks{{stream=\"a\",group=\"other\",medium=\"other\"}} {}\n",
                              2 * (1000 - kMaxShelves + 1))));
}

TEST_CASE("a name cannot end its line") {
  const StreamFigures figures = Figures("a\"\n\\b");
  const std::string text = StreamMetricsText({&figures, 1}, 0);
  CHECK(Has(text, "kvwire_stream_gaps_total{stream=\"a\\\"\\\\x0a\\\\x5cb\"} 0\n"));
}

TEST_CASE("a metric has one help and one type, whatever the number of streams") {
  const std::vector<StreamFigures> streams{Figures("a"), Figures("b")};
  const std::string text = StreamMetricsText(streams, 0);
  CHECK(LinesOf(text, "# HELP kvwire_stream_messages_total ") == 1);
  CHECK(LinesOf(text, "# TYPE kvwire_stream_messages_total counter") == 1);
  CHECK(LinesOf(text, "kvwire_stream_messages_total{") == 2);
  CHECK(LinesOf(text, "kvwire_stream_state{") == 2 * kNumStreamStates);
  CHECK(LinesOf(text, "kvwire_stream_violations_total{") == 2 * kNumCheckRules);
}

}  // namespace
}  // namespace kvwire::engine
