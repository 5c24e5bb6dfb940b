#pragma once

namespace d9d::kernels::detail {

// Whether this library was built with nvcc and so has CUDA kernels.
[[nodiscard]] bool is_built_with_cuda();

}  // namespace d9d::kernels::detail
