// Shuffles a dataset anew in each epoch, in the same way as GlobalBatchSampler. It is used for sources of a mixture.
//
// Example
//   const auto shuffled = std::make_shared<ShuffledDataset<TokenSample>>(dataset, /*seed=*/1337);
#pragma once

#include <memory>
#include <utility>

#include "d9d/data/order/permutation.h"
#include "d9d/data/sequences/dataset.h"

namespace d9d {

template <class Sample>
class ShuffledDataset final : public Dataset<Sample> {
 public:
  ShuffledDataset(std::shared_ptr<const Dataset<Sample>> base, std::uint64_t seed)
      : base_(std::move(base)), seed_(seed) {}

  [[nodiscard]] std::int64_t size() const override { return base_->size(); }
  [[nodiscard]] Sample get(std::int64_t index) const override { return get_in_epoch(index, 0); }
  [[nodiscard]] Sample get_in_epoch(std::int64_t index, std::int64_t epoch) const override {
    const Permutation order(base_->size(), {.seed = seed_, .epoch = epoch});
    return base_->get_in_epoch(order(index), epoch);
  }
  [[nodiscard]] DataDescription describe() const override {
    return {.line = "shuffled in each epoch", .inputs = {base_->describe()}};
  }

 private:
  std::shared_ptr<const Dataset<Sample>> base_;
  std::uint64_t seed_;
};

}  // namespace d9d
