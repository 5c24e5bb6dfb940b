// Sums of powers of one tensor's magnitudes on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::detail {

// Returns sum |x|^order, or max |x| for an infinite order. order: 1, 2, 3 or infinity. x: contiguous; float, double or
// bfloat16. The result does not depend on the number of threads.
[[nodiscard]] double power_sum_cpu(const at::Tensor& x, double order);

}  // namespace d9d::detail
