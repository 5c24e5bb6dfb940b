// A dataset in the order of a BufferSortedOrder: batches of samples of similar length, in random order.
//
// Example
//   BufferSortedDataset sorted(std::make_shared<const DocumentDataset>(documents),
//                              {.buffer_size = 1024, .batch_size = 64, .seed = 1337, .shuffle = true});
// Read it without shuffling: a GlobalBatchSampler that shuffles would separate neighbours of similar length.
#pragma once

#include <memory>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/data/order/buffer_sorted_order.h"
#include "d9d/data/sequences/dataset.h"

namespace d9d {

// Sorts `Base`, a dataset with `std::int64_t sort_key(std::int64_t index) const`.
template <class Base>
class BufferSortedDataset final : public Dataset<decltype(std::declval<const Base&>().get(0))> {
 public:
  using Sample = decltype(std::declval<const Base&>().get(0));

  // Throws the errors of BufferSortedOrder. Options::size and sort_key are ignored: those of `base` are used.
  BufferSortedDataset(std::shared_ptr<const Base> base, BufferSortedOrder::Options options)
      : base_(std::move(base)), order_(of_base(*base_, std::move(options))) {}

  [[nodiscard]] std::int64_t size() const override { return base_->size(); }
  [[nodiscard]] Sample get(std::int64_t index) const override { return get_in_epoch(index, 0); }
  [[nodiscard]] Sample get_in_epoch(std::int64_t index, std::int64_t epoch) const override {
    return sample_in_epoch(*base_, order_(index, epoch), epoch);
  }
  [[nodiscard]] DataDescription describe() const override {
    const BufferSortedOrder::Options& order = order_.options();
    return {.line = cat("sorted by length in buffers of ", order.buffer_size, ", in batches of ", order.batch_size,
                        order.shuffle ? ", shuffled in each epoch" : ", shuffled"),
            .inputs = {describe_dataset(*base_)}};
  }

 private:
  static BufferSortedOrder::Options of_base(const Base& base, BufferSortedOrder::Options options) {
    options.size = base.size();
    options.sort_key = [&base](std::int64_t index) { return base.sort_key(index); };
    return options;
  }

  std::shared_ptr<const Base> base_;
  BufferSortedOrder order_;
};

}  // namespace d9d
