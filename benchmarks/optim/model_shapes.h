// The parameters of Qwen3 1.7B with untied embeddings: few huge tensors, many large ones, many tiny ones.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace d9d::benchmarks {

// Embedding, head and last norm, then layer by layer.
[[nodiscard]] inline std::vector<std::vector<std::int64_t>> qwen3_1_7b_shapes() {
  constexpr std::int64_t kHidden = 2048, kIntermediate = 6144, kHead = 128, kVocabulary = 151'936;
  constexpr std::int64_t kQueries = 16 * kHead, kKeys = 8 * kHead;
  std::vector<std::vector<std::int64_t>> shapes = {{kVocabulary, kHidden}, {kVocabulary, kHidden}, {kHidden}};
  for (int layer = 0; layer < 28; ++layer) {
    for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{{kQueries, kHidden},
                                                                                         {kKeys, kHidden},
                                                                                         {kKeys, kHidden},
                                                                                         {kHidden, kQueries},
                                                                                         {kHead},
                                                                                         {kHead},
                                                                                         {kIntermediate, kHidden},
                                                                                         {kIntermediate, kHidden},
                                                                                         {kHidden, kIntermediate},
                                                                                         {kHidden},
                                                                                         {kHidden}})
      shapes.push_back(shape);
  }
  return shapes;
}

// Numbers of elements of each tensor, or of what one of `num_shards` ranks has of it.
[[nodiscard]] inline std::vector<std::int64_t> qwen3_1_7b_sizes(std::int64_t num_shards) {
  std::vector<std::int64_t> sizes;
  for (const std::vector<std::int64_t>& shape : qwen3_1_7b_shapes()) {
    const std::int64_t size = shape.size() == 1 ? shape[0] : shape[0] * shape[1];
    sizes.push_back((size + num_shards - 1) / num_shards);
  }
  return sizes;
}

// "2032M in 311 tensors"
[[nodiscard]] inline std::string describe(double num_elements, std::size_t num_tensors) {
  return std::to_string(std::lround(num_elements * 1e-6)) + "M in " + std::to_string(num_tensors) + " tensors";
}

}  // namespace d9d::benchmarks
