#pragma once

namespace d9d::kernels::detail {

// Whether nvcc was there when this library was built.
[[nodiscard]] bool is_built_with_cuda();

}  // namespace d9d::kernels::detail
