// Loops over a chunk of logits in float or double on the CPU: logsumexp and softmax of each row.
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// logits [T, C], contiguous. Returns [T]: log(sum_c exp(logits[t, c])).
[[nodiscard]] at::Tensor logsumexp_rows_cpu(const at::Tensor& logits);

// logits[t, c] = factor[t] * exp(logits[t, c] - lse[t]), in place; lse, factor [T] in logits' dtype, contiguous.
void scaled_softmax_rows_cpu(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& factor);

}  // namespace d9d::kernels::detail
