// SPDX-License-Identifier: Apache-2.0
#include "engine/cli/doctor_sample.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kv_events/escape_text.h"

namespace kvwire::engine {

namespace {

template <class T>
void Insert(std::set<T>* values, T value, std::size_t most) {
  if (values->size() < most) values->insert(std::move(value));
}

// "array", "map", or both.
std::string Shapes(std::size_t arrays, std::size_t maps) {
  if (arrays == 0) return "map";
  return maps == 0 ? "array" : "array and map";
}

}  // namespace

void DoctorSample::Add(std::string_view topic, SequenceNumber number, FrameView payload) {
  Insert(&topics_, std::string(topic), kMost);
  AddWithoutTopic(number, payload);
}

void DoctorSample::AddWithoutTopic(SequenceNumber number, FrameView payload) {
  ++messages_;
  const auto decoded = DecodeBatch(payload);
  if (!decoded) {
    if (problem_.empty()) problem_ = fmt::format("message {}: {}", number, decoded.error().message);
    return;
  }
  if (!decoded->rejected.empty() && problem_.empty()) {
    problem_ = fmt::format("message {}: {}", number, decoded->rejected.front().error.message);
  }
  Note(*decoded);
}

void DoctorSample::Note(const DecodedBatch& decoded) {
  ++(decoded.shape == BatchShape::kMap ? map_batches_ : array_batches_);
  map_events_ += decoded.map_events;
  array_events_ += decoded.array_events;
  if (decoded.batch.data_parallel_rank) {
    Insert(&ranks_, *decoded.batch.data_parallel_rank, kMost);
  } else {
    ++without_rank_;
  }
  decoded.batch.Visit([this](const auto& event) {
    if constexpr (requires { event.block_hashes; }) {
      if (!event.block_hashes.empty()) Insert(&hash_bytes_, event.block_hashes[0].size(), kMost);
      Insert(&media_, EscapeText(event.medium.value_or("no medium")), kMost);
      Insert(&groups_, event.group_idx.value_or(0), kMost);
    }
    if constexpr (requires { event.token_ids; }) Insert(&block_sizes_, event.block_size, kMost);
  });
}

std::string_view DoctorSample::Dialect() const {
  if (media_.contains("CPU_PINNED")) return "SGLang's";
  if (map_batches_ > 0) return "a branch of vLLM's that was never released";
  if (array_events_ == 0) return "vLLM's since 0.24, TensorRT-LLM's";
  return map_events_ == 0 ? "vLLM's before 0.24, SGLang's" : "of several producers";
}

std::string DoctorSample::Format() const {
  if (events() == 0) return {};
  std::string hashes;
  for (const std::size_t bytes : hash_bytes_) {
    hashes += fmt::format("{}{}", hashes.empty() ? "; hashes of " : " and ",
                          bytes == 8 ? std::string("64 bits") : fmt::format("{} bytes", bytes));
  }
  std::string text = fmt::format("{} batches of {} events{}", Shapes(array_batches_, map_batches_),
                                 Shapes(array_events_, map_events_), hashes);
  if (!media_.empty()) text += fmt::format("; {}", fmt::join(media_, ", "));
  if (groups_.size() > 1) text += fmt::format("; groups {}", fmt::join(groups_, ", "));
  return text + fmt::format(" ({})", Dialect());
}

}  // namespace kvwire::engine
