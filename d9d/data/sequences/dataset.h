// A map-style dataset: samples by index.
//
// Example
//   class Squares final : public d9d::Dataset<at::Tensor> {
//    public:
//     std::int64_t size() const override { return 100; }
//     at::Tensor get(std::int64_t index) const override { return at::scalar_tensor(index * index); }
//   };
#pragma once

#include <cstdint>

#include "d9d/data/description/data_description.h"

namespace d9d {

template <class Sample>
class Dataset {
 public:
  Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  virtual ~Dataset() = default;

  [[nodiscard]] virtual std::int64_t size() const = 0;

  // Expects 0 <= index < size(). Called concurrently from several threads; equal indices must give equal samples.
  [[nodiscard]] virtual Sample get(std::int64_t index) const = 0;

  // Returns the sample at `index` in pass `epoch` >= 0 over the dataset. By default the epoch has no effect; datasets
  // that rearrange their samples in each epoch override this function.
  [[nodiscard]] virtual Sample get_in_epoch(std::int64_t index, std::int64_t /*epoch*/) const { return get(index); }

  // Describes the dataset for the log; by default its number of samples.
  [[nodiscard]] virtual DataDescription describe() const { return {.line = counted(size(), "sample")}; }
};

// Reads a sample for a loader: by get_in_epoch() if the dataset has it, else by get().
template <class AnyDataset>
[[nodiscard]] auto sample_in_epoch(const AnyDataset& dataset, std::int64_t index, std::int64_t epoch) {
  if constexpr (requires { dataset.get_in_epoch(index, epoch); }) {
    return dataset.get_in_epoch(index, epoch);
  } else {
    return dataset.get(index);
  }
}

// Returns the description of a dataset: by describe() if the dataset has it, else its number of samples.
template <class AnyDataset>
[[nodiscard]] DataDescription describe_dataset(const AnyDataset& dataset) {
  if constexpr (Describes<AnyDataset>) {
    return dataset.describe();
  } else {
    return {.line = counted(dataset.size(), "sample")};
  }
}

}  // namespace d9d
