// The sum, the maximum or the minimum of all updates, element by element. What a metric keeps in accumulators is
// reduced over ranks (reduce_metrics.h) and saved in checkpoints.
//
// Example
//   Accumulator largest({}, ReduceOp::kMax);
//   largest.update(losses.max());               // once a microbatch; stays on the device
//   largest.value().item<double>();
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/reduce_op.h"

namespace d9d {

// How the updates count of ranks that share sequences (context parallelism, the axis "cp" of metric_ranks()).
enum class CountedBy : std::uint8_t {
  kToken,   // each rank counts other tokens: updates add up
  kSample,  // all of them count the same samples, with the same updates: those of one count
};

class Accumulator {
 public:
  // shape: of updates and value, the same on all ranks. Throws StateError for ReduceOp::kAvg: the mean is a quotient of
  // two sums.
  explicit Accumulator(std::vector<std::int64_t> shape = {}, ReduceOp op = ReduceOp::kSum);

  // values: of the shape, any dtype and device; detached and copied. Throws StateError for another shape.
  void update(const at::Tensor& values);
  void reset() { value_ = at::Tensor(); }
  // By default CountedBy::kToken. The same on all ranks, and set before the first update; see counted_by_sample().
  void set_counted_by(CountedBy counted_by) { counted_by_ = counted_by; }

  // fp64, on the device of the updates, and not to be written to. Without updates 0, -inf or inf, on the CPU.
  [[nodiscard]] at::Tensor value() const { return value_on(at::kCPU); }
  // Returns value(); without updates on this device, where it is made without a wait.
  [[nodiscard]] at::Tensor value_on(at::Device device) const;
  [[nodiscard]] bool has_updates() const { return value_.defined(); }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return shape_; }
  [[nodiscard]] ReduceOp op() const { return op_; }
  [[nodiscard]] CountedBy counted_by() const { return counted_by_; }

 private:
  std::vector<std::int64_t> shape_;
  ReduceOp op_;
  CountedBy counted_by_ = CountedBy::kToken;
  at::Tensor value_;  // undefined: no updates. Never written in place, since a copy of it may be under way.
};

}  // namespace d9d
