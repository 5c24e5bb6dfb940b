// A part of a dataset, for programs that distribute data over ranks themselves. The pack streams of this library do not
// need it: GlobalBatchSampler divides each global batch.
//
// Example
//   auto shard = shard_dataset_data_parallel(dataset, context);     // this rank's shard; all have one length
//
//   base index of i      sequential: i * num_shards + shard       chunked: ceil(size / num_shards) * shard + i
//                        (in a padded shard, an index past the end of the dataset becomes its last index)
//
// In both modes the samples of a step depend on the number of shards, so a job that resumes with another number reads
// other samples. With `chunked`, the ranks of a step read samples that are far apart in the dataset.
#pragma once

#include <memory>
#include <utility>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/data/order/shard_indexing_mode.h"
#include "d9d/data/order/shard_positions.h"
#include "d9d/data/sequences/dataset.h"

namespace d9d {

template <class Base>
class ShardedDataset final : public Dataset<decltype(std::declval<const Base&>().get(0))> {
 public:
  using Sample = decltype(std::declval<const Base&>().get(0));

  // Throws the ConfigError of ShardPositions.
  ShardedDataset(std::shared_ptr<const Base> base, ShardOptions options)
      : base_(std::move(base)), positions_(base_->size(), options) {}

  [[nodiscard]] std::int64_t size() const override { return positions_.size(); }
  [[nodiscard]] Sample get(std::int64_t index) const override { return base_->get(positions_(index)); }
  [[nodiscard]] Sample get_in_epoch(std::int64_t index, std::int64_t epoch) const override {
    return sample_in_epoch(*base_, positions_(index), epoch);
  }
  [[nodiscard]] DataDescription describe() const override {
    return {.line = counted(size(), "sample") + " of one shard", .inputs = {describe_dataset(*base_)}};
  }
  [[nodiscard]] std::int64_t sort_key(std::int64_t index) const requires requires(const Base& base) {
    base.sort_key(0);
  }
  { return base_->sort_key(positions_(index)); }

 private:
  std::shared_ptr<const Base> base_;
  ShardPositions positions_;
};

// Returns the shard of this rank among the data-parallel ranks. Ranks that differ in other coordinates get equal
// shards.
template <class Base>
[[nodiscard]] std::shared_ptr<ShardedDataset<Base>> shard_dataset_data_parallel(
    std::shared_ptr<const Base> base, const DistContext& context,
    ShardIndexingMode mode = ShardIndexingMode::kSequential, bool is_padded = true) {
  return std::make_shared<ShardedDataset<Base>>(std::move(base),
                                                ShardOptions{.num_shards = context.data_parallel_size(),
                                                             .shard = context.data_parallel_rank(),
                                                             .mode = mode,
                                                             .is_padded = is_padded});
}

}  // namespace d9d
