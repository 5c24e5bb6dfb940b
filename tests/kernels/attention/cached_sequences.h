// Shared by the tests of attention to keys in a cache.
//
// Example
//   const CachedSequences cached = cached_sequences({1, 4}, {9, 4});       // 1 and 4 queries, 9 and 4 keys
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "d9d/core/packed_sequences/packed_sequences.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::attention_testing {

[[nodiscard]] inline PackedSequences packed_sequences(const std::vector<int>& lengths) {
  std::vector<int> ends(lengths.size() + 1);
  std::partial_sum(lengths.begin(), lengths.end(), ends.begin() + 1);
  return {.cu_seqlens = at::tensor(ends, at::kInt), .max_length = *std::max_element(lengths.begin(), lengths.end())};
}

// Sequences whose last positions are the queries. With `room` rows behind the keys of each, and as many that belong to
// no sequence; without any the keys fill their rooms, and have no lengths.
struct CachedSequences {
  std::vector<at::Tensor> inputs;  // query, key, value, sinks
  PackedSequences packed;
  PackedKeys keys;
};

inline constexpr int kRoom = 3;

[[nodiscard]] inline CachedSequences cached_sequences(const std::vector<int>& num_queries,
                                                      const std::vector<int>& num_keys,
                                                      at::ScalarType dtype = at::kDouble, int room = kRoom) {
  std::vector<int> rooms = num_keys;
  for (int& each : rooms) each += room;
  const std::int64_t num_rows = std::accumulate(rooms.begin(), rooms.end(), std::int64_t{room});
  const std::int64_t total = std::accumulate(num_queries.begin(), num_queries.end(), std::int64_t{0});
  using testing::values;
  return {.inputs = {values({1, total, 4, 16}, 1, dtype), values({1, num_rows, 2, 16}, 2, dtype),
                     values({1, num_rows, 2, 16}, 3, dtype), values({4}, 4)},
          .packed = packed_sequences(num_queries),
          .keys = {.cu_seqlens = packed_sequences(rooms).cu_seqlens,
                   .lengths = room == 0 ? at::Tensor() : at::tensor(num_keys, at::kInt),
                   .max_length = *std::max_element(num_keys.begin(), num_keys.end())}};
}

// Numbers of queries and of keys.
inline const std::vector<std::pair<std::vector<int>, std::vector<int>>> kCachedLengths = {
    {{1, 1, 1}, {9, 1, 30}}, {{4, 0, 7, 1}, {4, 2, 20, 1}}, {{5}, {5}}, {{1, 1}, {300, 129}}, {{70, 1}, {200, 3}}};

// The same of the positions of one rank: sequences that end before them have keys and no queries, and those that begin
// behind them have neither.
inline const std::vector<std::pair<std::vector<int>, std::vector<int>>> kGatheredLengths = {
    {{0, 0, 64, 0}, {33, 31, 64, 0}},
    {{0, 50, 0, 14}, {70, 150, 0, 14}},
    {{1, 0, 1, 1}, {129, 64, 2, 1}},
    {{64}, {256}},
    {{0, 1, 0}, {5, 1, 0}}};

}  // namespace d9d::kernels::attention_testing
