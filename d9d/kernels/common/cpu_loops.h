// Decides which tensors the ops' own CPU loops compute; all others go through ATen.
//
// Example
//   return has_cpu_loops(x) ? silu_mul_forward_cpu(gate, up) : silu_mul_forward_aten(gate, up);
#pragma once

#include <ATen/core/TensorBase.h>

namespace d9d::kernels::detail {

// Grain size of at::parallel_for: fewer elements do not pay for another thread.
inline constexpr std::int64_t kElementsPerTask = 16384;

[[nodiscard]] inline bool has_cpu_loops(const at::TensorBase& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  return tensor.is_cpu() && (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16);
}

}  // namespace d9d::kernels::detail
