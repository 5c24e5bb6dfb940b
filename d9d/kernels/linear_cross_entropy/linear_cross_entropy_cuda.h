// linear_cross_entropy on a GPU that has kernels for it (has_cuda_kernels), without autograd: matrix products of ATen
// around kernels of ours. targets are contiguous.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_aten.h"
#include "d9d/kernels/linear_cross_entropy/logit_blocks.h"

namespace d9d::kernels::detail {

// Targets of rows: kIgnored for ignore_index, `vocabulary`, of which the loss is NaN, for other ids outside it. One
// kernel: the first use of each of LibTorch's elementwise operators loads a library of kernels.
[[nodiscard]] at::Tensor checked_targets_cuda(const at::Tensor& targets, std::int64_t ignore_index,
                                              std::int64_t vocabulary);

// As the functions of ATen.
[[nodiscard]] LinearCrossEntropyForward linear_cross_entropy_forward_cuda(const LinearCrossEntropyInput& input);
[[nodiscard]] LinearCrossEntropyBackward linear_cross_entropy_backward_cuda(const LinearCrossEntropyInput& input,
                                                                            const at::Tensor& lse,
                                                                            const at::Tensor& grad_loss,
                                                                            const at::Tensor& grad_lse,
                                                                            const LinearCrossEntropyWanted& wanted);

// Forward together with the backward for grad_loss = 1, grad_lse = 0 in three matrix products; chunks.num_rows rows go
// through the vocabulary together, a half-precision number a logit. hidden: bf16, of at least one row. All sums are
// fp32. Gradients are bf16, but for those of weights over more than one chunk of rows: fp32, for put_scaled_cuda().
// wanted.places is left alone.
struct LinearCrossEntropyWithGradients {
  LinearCrossEntropyForward forward;
  LinearCrossEntropyBackward backward;
};
[[nodiscard]] LinearCrossEntropyWithGradients linear_cross_entropy_with_gradients_cuda(
    const LinearCrossEntropyInput& input, const LinearCrossEntropyWanted& wanted, const LogitChunks& chunks);

// For that function: the fewest chunks of about input.chunk_size / V rows, of even length; of fp32 logits 2^24, more or
// less, at a time.
[[nodiscard]] LogitChunks chunks_with_gradients(const LinearCrossEntropyInput& input);

// gradient *= factor, in place, without waiting; nothing is moved when it is 1. gradient: bf16, contiguous; factor: one
// fp32 number on its device.
void scale_cuda_(const at::Tensor& gradient, const at::Tensor& factor);

// Adds values * factor to the place, or overwrites it, rounding once, in one pass and without waiting. values: bf16 or
// fp32, contiguous; factor: as above.
void put_scaled_cuda(const GradientPlace& place, const at::Tensor& values, const at::Tensor& factor);

}  // namespace d9d::kernels::detail
