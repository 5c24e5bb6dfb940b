// Implementations of linear_cross_entropy for rows, without autograd. `aten` is the mathematics on tensors of any
// device, against which the others are measured; `cpu` are loops over a chunk of its logits; `cuda` takes what
// has_cuda_kernels() takes: matrix products (../linear/gemm.h) and this op's kernels for the passes between them, with
// contiguous targets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/kernels/linear_cross_entropy/gradient_filter.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_kernel.h"

namespace d9d::kernels::detail {

// Legend   T = rows, H = hidden size, V = vocabulary, A = accumulator dtype: fp64 for fp64 hidden, otherwise fp32.

// A product that the logits have as a summand.
struct LogitFactors {
  at::Tensor hidden;                // [T, H]
  std::vector<at::Tensor> weights;  // [V_s, H], in the order of the vocabulary
};
struct LinearCrossEntropyInput {
  std::vector<LogitFactors> products;  // of hidden, and of a term of low rank; at least one, of the same T and V_s
  at::Tensor bias = {};                // [V] or undefined
  at::Tensor targets;  // [T] int64: index in the vocabulary or kIgnored; others give a NaN loss unless a rank has them
  std::optional<double> softcap = {};
  double z_loss_weight = 0;
  std::int64_t chunk_size = 0;
  GradientFilter filter = {};
  std::optional<VocabularyShard> shard = {};  // for the forward; the backward gets lse of the whole vocabulary

  // Collective if there is a shard. statistics [N, T], contiguous, of the rows of a chunk or of all -> [W, N, T] of all
  // ranks.
  [[nodiscard]] at::Tensor of_ranks(const at::Tensor& statistics) const {
    return shard ? shard->gather(statistics) : statistics.unsqueeze(0);
  }
  [[nodiscard]] const at::Tensor& hidden() const { return products.front().hidden; }
  [[nodiscard]] const std::vector<at::Tensor>& weights() const { return products.front().weights; }
};

struct LinearCrossEntropyForward {
  at::Tensor loss;  // [T], A; 0 where ignored
  at::Tensor lse;   // [T], A; 0 where ignored
};
struct WantedOfFactors {
  bool hidden = false;
  std::vector<bool> weights = {};
  // For each weight the place to which its gradient is written instead of being returned. May have fewer entries than
  // there are weights; the remaining weights have no place.
  std::vector<std::optional<GradientPlace>> places = {};

  [[nodiscard]] bool any_weight() const { return std::ranges::find(weights, true) != weights.end(); }
};
struct LinearCrossEntropyWanted {
  std::vector<WantedOfFactors> products = {};
  bool bias = false;
};
struct LinearCrossEntropyBackward {  // in the inputs' dtypes; undefined if not wanted or written to a place
  std::vector<LogitFactors> products;
  at::Tensor bias;
};

// Uninitialised gradients in `dtype` of the weights whose gradients are wanted and have no place; the others are
// undefined.
[[nodiscard]] std::vector<at::Tensor> empty_weight_gradients(const LogitFactors& factors, const WantedOfFactors& wanted,
                                                             at::ScalarType dtype);
// The destination of the gradient of weight `split`: its place, or else the gradient in `result`.
[[nodiscard]] GradientPlace weight_place(const WantedOfFactors& wanted, const LogitFactors& result, std::size_t split);
// The part of a destination that belongs to `size` rows of the weight from `begin` on.
[[nodiscard]] GradientPlace rows_of_place(const GradientPlace& place, std::int64_t begin, std::int64_t size);

[[nodiscard]] LinearCrossEntropyForward linear_cross_entropy_forward_aten(const LinearCrossEntropyInput& input);

// grad_loss and grad_lse are [T]; either may be undefined.
[[nodiscard]] LinearCrossEntropyBackward linear_cross_entropy_backward_aten(const LinearCrossEntropyInput& input,
                                                                            const at::Tensor& lse,
                                                                            const at::Tensor& grad_loss,
                                                                            const at::Tensor& grad_lse,
                                                                            const LinearCrossEntropyWanted& wanted);

// logits [T, C], contiguous. Returns [T]: log(sum_c exp(logits[t, c])).
[[nodiscard]] at::Tensor logsumexp_rows_cpu(const at::Tensor& logits);

// logits[t, c] = factor[t] * exp(logits[t, c] - lse[t]), in place; lse, factor [T] in logits' dtype, contiguous.
void scaled_softmax_rows_cpu(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& factor);

// Targets with ignore_index replaced by kIgnored, and other ids outside the vocabulary by `vocabulary`, whose loss is
// NaN. It is a single kernel, because the first use of each of LibTorch's elementwise operators loads a kernel module.
[[nodiscard]] at::Tensor checked_targets_cuda(const at::Tensor& targets, std::int64_t ignore_index,
                                              std::int64_t vocabulary);

// The same as the functions of `aten`.
[[nodiscard]] LinearCrossEntropyForward linear_cross_entropy_forward_cuda(const LinearCrossEntropyInput& input);
[[nodiscard]] LinearCrossEntropyBackward linear_cross_entropy_backward_cuda(const LinearCrossEntropyInput& input,
                                                                            const at::Tensor& lse,
                                                                            const at::Tensor& grad_loss,
                                                                            const at::Tensor& grad_lse,
                                                                            const LinearCrossEntropyWanted& wanted);

// How much of the logits is computed at a time.
struct LogitChunks {
  std::int64_t num_rows;
  std::int64_t num_columns;
};

// Forward together with the backward for grad_loss = 1, grad_lse = 0, in three matrix products. For chunks.num_rows
// rows at a time it stores a half-precision number for each logit of the whole vocabulary. hidden is bf16 and has at
// least one row. All sums are fp32. Gradients are bf16, except that those of weights are fp32 if there is more than
// one chunk of rows; put_scaled_cuda() then rounds them. Places are not used. With a shard Collective for each chunk.
struct LinearCrossEntropyWithGradients {
  LinearCrossEntropyForward forward;
  LinearCrossEntropyBackward backward;
};
[[nodiscard]] LinearCrossEntropyWithGradients linear_cross_entropy_with_gradients_cuda(
    const LinearCrossEntropyInput& input, const LinearCrossEntropyWanted& wanted, const LogitChunks& chunks);

// The chunks for that function: as few as possible with about input.chunk_size / V rows, of equal length, and with
// blocks of columns such that about 2^24 fp32 logits are stored at a time. The rows are the same on all ranks that have
// parts of a vocabulary.
[[nodiscard]] LogitChunks chunks_with_gradients(const LinearCrossEntropyInput& input);

// gradient *= factor, in place, without synchronising; reads and writes no gradient if the factor is 1. gradient is
// bf16 and contiguous, factor one fp32 number on the same device.
void scale_cuda_(const at::Tensor& gradient, const at::Tensor& factor);

// Clears the tiles of `values` that the filter leaves out (launch_clear_tiles); values [rows, C], of which rows are
// contiguous, threshold [rows] in the accumulator's dtype.
void clear_tiles_cuda_(const at::Tensor& values, const at::Tensor& threshold);

// Adds values * factor to the place if it has values, otherwise overwrites it. For a bf16 or fp32 place this is one
// pass with one rounding. Does not synchronise. values are bf16 or fp32 and contiguous, factor as above.
void put_scaled_cuda(const GradientPlace& place, const at::Tensor& values, const at::Tensor& factor);

}  // namespace d9d::kernels::detail
