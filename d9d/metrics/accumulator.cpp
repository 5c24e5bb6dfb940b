#include "d9d/metrics/accumulator.h"

#include <limits>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double neutral_element(ReduceOp op) {
  if (op == ReduceOp::kSum) return 0;
  return op == ReduceOp::kMax ? -kInfinity : kInfinity;
}

at::Tensor combined(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  if (op == ReduceOp::kSum) return a + b;
  return op == ReduceOp::kMax ? at::maximum(a, b) : at::minimum(a, b);
}

}  // namespace

Accumulator::Accumulator(std::vector<std::int64_t> shape, ReduceOp op) : shape_(std::move(shape)), op_(op) {
  D9D_CHECK(op != ReduceOp::kAvg, StateError, "[metrics] expected an accumulator of sums, maxima or minima, got ",
            to_string(op), ". Keep two sums, and divide them in Metric::compute().");
}

void Accumulator::update(const at::Tensor& values) {
  D9D_CHECK(values.sizes() == shape_, StateError, "[metrics] expected values of shape ", at::IntArrayRef(shape_),
            " for an accumulator, got ", values.sizes(), ". Give it the shape when it is constructed.");
  const at::Tensor wide = values.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/!has_updates());
  if (!has_updates()) {
    value_ = wide;
    return;
  }
  if (shape_.empty()) {  // numbers may be of different devices, without a copy for which the host would wait
    value_ = combined(value_, wide, op_);
    return;
  }
  const at::Device device = value_.is_cpu() ? wide.device() : value_.device();
  value_ = combined(value_.to(device), wide.to(device), op_);
}

at::Tensor Accumulator::value_on(at::Device device) const {
  if (has_updates()) return value_;
  return at::full(shape_, neutral_element(op_), at::TensorOptions(device).dtype(at::kDouble));
}

}  // namespace d9d
