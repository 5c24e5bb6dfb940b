#include "d9d/blocks/linear/magnitude.h"

#include <limits>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/core/collectives/differentiable.h"

namespace d9d {

Magnitude::Magnitude(std::int64_t out_features)
    : weight(register_parameter("weight",
                                {.shape = {out_features},
                                 .init = [](const at::Tensor& values, const auto&,
                                            const auto&) { values.fill_(std::numeric_limits<double>::quiet_NaN()); },
                                 .role = ParameterRole::kVector})) {}

at::Tensor Magnitude::forward(const at::Tensor& product, const at::Tensor& norms) const {
  const at::Tensor own = rows_ ? weight->local().narrow(0, rows_->begin, rows_->numel()) : weight->local();
  return (product * (own / norms)).to(product.scalar_type());
}

at::Tensor squares_of_rows(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b, double scale) {
  const auto wide = at::promote_types(weight.scalar_type(), at::kFloat);
  const at::Tensor wide_a = a.to(wide), wide_b = b.to(wide);
  const at::Tensor products = weight.matmul(a.t()).to(wide) * (2.0 * scale) +  // [out, r], of the weight's dtype
                              wide_b.matmul(wide_a.matmul(wide_a.t())) * (scale * scale);
  return at::linalg_vector_norm(weight, 2, at::IntArrayRef{1}, /*keepdim=*/false, wide).square() +
         (products * wide_b).sum(1);
}

at::Tensor norms_of_squares(const at::Tensor& squares) {
  return squares.clamp_min(std::numeric_limits<float>::min()).sqrt();
}

at::Tensor norms_of_rows(const at::Tensor& squares, const Parameter& weight) {
  const at::NoGradGuard no_grad;
  at::Tensor sums = squares;
  for (std::size_t axis = 0; axis < weight.placements().size(); ++axis) {
    const auto* const shard = std::get_if<Shard>(&weight.placements()[axis]);
    if (shard == nullptr || shard->dim != 1) continue;
    sums = all_reduce_forward(sums, weight.mesh().slice({weight.mesh().axes()[axis].name}).lane_communicator());
  }
  return norms_of_squares(sums);
}

}  // namespace d9d
