// The mathematics of linear_cross_entropy for rows, on plain tensors of any device, without autograd. Other
// implementations are measured against it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_kernel.h"

namespace d9d::kernels::detail {

// Legend   T = rows, H = hidden size, V = vocabulary, A = accumulator dtype: fp64 for fp64 hidden, otherwise fp32.
struct LinearCrossEntropyInput {
  at::Tensor hidden;                // [T, H]
  std::vector<at::Tensor> weights;  // [V_s, H], in the order of the vocabulary
  at::Tensor bias = {};             // [V] or undefined
  at::Tensor targets;               // [T] int64: index in the vocabulary or kIgnored; others give a NaN loss
  std::optional<double> softcap = {};
  double z_loss_weight = 0;
  std::int64_t chunk_size = 0;
};

struct LinearCrossEntropyForward {
  at::Tensor loss;  // [T], A; 0 where ignored
  at::Tensor lse;   // [T], A; 0 where ignored
};
struct LinearCrossEntropyWanted {
  bool hidden = false;
  std::vector<bool> weights = {};
  bool bias = false;
  // For each weight the place to which its gradient is written instead of being returned. May have fewer entries than
  // there are weights; the remaining weights have no place.
  std::vector<std::optional<GradientPlace>> places = {};
};
struct LinearCrossEntropyBackward {  // in the inputs' dtypes; undefined if not wanted or written to a place
  at::Tensor hidden;
  std::vector<at::Tensor> weights;
  at::Tensor bias;
};

// Uninitialised gradients in `dtype` of the weights whose gradients are wanted and have no place; the others are
// undefined.
[[nodiscard]] std::vector<at::Tensor> empty_weight_gradients(const LinearCrossEntropyInput& input,
                                                             const LinearCrossEntropyWanted& wanted,
                                                             at::ScalarType dtype);
// The destination of the gradient of weight `split`: its place, or else the gradient in `result`.
[[nodiscard]] GradientPlace weight_place(const LinearCrossEntropyWanted& wanted,
                                         const LinearCrossEntropyBackward& result, std::size_t split);
// The part of a destination that belongs to `size` rows of the weight from `begin` on.
[[nodiscard]] GradientPlace rows_of_place(const GradientPlace& place, std::int64_t begin, std::int64_t size);

[[nodiscard]] LinearCrossEntropyForward linear_cross_entropy_forward_aten(const LinearCrossEntropyInput& input);

// grad_loss and grad_lse are [T]; either may be undefined.
[[nodiscard]] LinearCrossEntropyBackward linear_cross_entropy_backward_aten(const LinearCrossEntropyInput& input,
                                                                            const at::Tensor& lse,
                                                                            const at::Tensor& grad_loss,
                                                                            const at::Tensor& grad_lse,
                                                                            const LinearCrossEntropyWanted& wanted);

}  // namespace d9d::kernels::detail
