#include "d9d/data/order/shard_positions.h"

#include <algorithm>

#include "d9d/base/check.h"

namespace d9d {

ShardPositions::ShardPositions(std::int64_t dataset_size, ShardOptions options)
    : dataset_size_(dataset_size), options_(options), longest_(0) {
  D9D_CHECK(options.shard >= 0 && options.shard < options.num_shards, ConfigError,
            "[data::ShardPositions] expected a shard below num_shards = ", options.num_shards, ", got ", options.shard,
            ". Take both from one mesh axis.");
  D9D_CHECK(dataset_size > 0 || !options.is_padded, ConfigError,
            "[data::ShardPositions] expected samples for padded shards, got none. Check the paths of the data.");
  longest_ = (dataset_size + options.num_shards - 1) / options.num_shards;
}

std::int64_t ShardPositions::size() const {
  if (options_.is_padded) return longest_;
  if (options_.mode == ShardIndexingMode::kChunked) {
    return std::clamp<std::int64_t>(dataset_size_ - longest_ * options_.shard, 0, longest_);
  }
  return dataset_size_ / options_.num_shards + (options_.shard < dataset_size_ % options_.num_shards ? 1 : 0);
}

std::int64_t ShardPositions::operator()(std::int64_t index) const {
  D9D_ASSERT(index >= 0 && index < size(), "index ", index, " of a shard of ", size());
  const std::int64_t position = options_.mode == ShardIndexingMode::kSequential
                                    ? index * options_.num_shards + options_.shard
                                    : longest_ * options_.shard + index;
  return std::min(position, dataset_size_ - 1);
}

}  // namespace d9d
