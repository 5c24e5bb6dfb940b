// linear_cross_entropy on a GPU with kernels (has_cuda_kernels), without autograd: matrix products (../linear/gemm.h)
// and this op's kernels for the passes between them. targets must be contiguous.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_aten.h"
#include "d9d/kernels/linear_cross_entropy/logit_blocks.h"

namespace d9d::kernels::detail {

// Targets with ignore_index replaced by kIgnored, and other ids outside the vocabulary by `vocabulary`, whose loss is
// NaN. It is a single kernel, because the first use of each of LibTorch's elementwise operators loads a kernel module.
[[nodiscard]] at::Tensor checked_targets_cuda(const at::Tensor& targets, std::int64_t ignore_index,
                                              std::int64_t vocabulary);

// The same as the functions of linear_cross_entropy_aten.h.
[[nodiscard]] LinearCrossEntropyForward linear_cross_entropy_forward_cuda(const LinearCrossEntropyInput& input);
[[nodiscard]] LinearCrossEntropyBackward linear_cross_entropy_backward_cuda(const LinearCrossEntropyInput& input,
                                                                            const at::Tensor& lse,
                                                                            const at::Tensor& grad_loss,
                                                                            const at::Tensor& grad_lse,
                                                                            const LinearCrossEntropyWanted& wanted);

// Forward together with the backward for grad_loss = 1, grad_lse = 0, in three matrix products. For chunks.num_rows
// rows at a time it stores a half-precision number for each logit of the whole vocabulary. hidden is bf16 and has at
// least one row. All sums are fp32. Gradients are bf16, except that those of weights are fp32 if there is more than one
// chunk of rows; put_scaled_cuda() then rounds them. wanted.places is not used.
struct LinearCrossEntropyWithGradients {
  LinearCrossEntropyForward forward;
  LinearCrossEntropyBackward backward;
};
[[nodiscard]] LinearCrossEntropyWithGradients linear_cross_entropy_with_gradients_cuda(
    const LinearCrossEntropyInput& input, const LinearCrossEntropyWanted& wanted, const LogitChunks& chunks);

// The chunks for that function: as few as possible with about input.chunk_size / V rows, of equal length, and with
// blocks of columns such that about 2^24 fp32 logits are stored at a time.
[[nodiscard]] LogitChunks chunks_with_gradients(const LinearCrossEntropyInput& input);

// gradient *= factor, in place, without synchronising; reads and writes no gradient if the factor is 1. gradient is
// bf16 and contiguous, factor one fp32 number on the same device.
void scale_cuda_(const at::Tensor& gradient, const at::Tensor& factor);

// Adds values * factor to the place if it has values, otherwise overwrites it. For a bf16 or fp32 place this is one
// pass with one rounding. Does not synchronise. values are bf16 or fp32 and contiguous, factor as above.
void put_scaled_cuda(const GradientPlace& place, const at::Tensor& values, const at::Tensor& factor);

}  // namespace d9d::kernels::detail
