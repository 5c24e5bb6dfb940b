// The orders of vector norms that gradients are clipped by. Free of torch headers.
#pragma once

namespace d9d::kernels::detail {

enum class NormOrder { kOne, kTwo, kThree, kInfinity };

}  // namespace d9d::kernels::detail
