// Determines which samples of a dataset belong to one shard: sample i of the shard is sample positions(i) of the
// dataset.
//
// Example
//   const ShardPositions positions(5, {.num_shards = 4, .shard = 2, .mode = ShardIndexingMode::kChunked});
//   positions.size();                                             // 1: the shards have 2, 2, 1 and 0 samples
#pragma once

#include <cstdint>

#include "d9d/data/order/shard_indexing_mode.h"

namespace d9d {

struct ShardOptions {
  std::int64_t num_shards = 1;
  std::int64_t shard = 0;
  ShardIndexingMode mode = ShardIndexingMode::kSequential;
  bool is_padded = false;  // pads all shards to ceil(size / num_shards) by repeating the dataset's last sample
};

class ShardPositions {
 public:
  // Throws ConfigError unless 0 <= shard < num_shards, and for a padded shard of an empty dataset.
  ShardPositions(std::int64_t dataset_size, ShardOptions options);

  [[nodiscard]] std::int64_t size() const;
  // Expects 0 <= index < size().
  [[nodiscard]] std::int64_t operator()(std::int64_t index) const;

 private:
  std::int64_t dataset_size_;
  ShardOptions options_;
  std::int64_t longest_;
};

}  // namespace d9d
