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
};

}  // namespace d9d
