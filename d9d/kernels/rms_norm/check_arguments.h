// Checks x and weight for the ops of this folder. Throws ConfigError.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/base/check.h"

namespace d9d::kernels::detail {

inline void check_rms_norm_arguments(const char* op, const at::Tensor& x, const at::Tensor& weight) {
  D9D_CHECK(weight.dim() == 1 && weight.size(0) > 0 && x.dim() > 0 && x.size(-1) == weight.size(0), ConfigError,
            "[kernels::", op, "] expected x [..., N] and weight [N] with N > 0, got x ", x.sizes(), " and weight ",
            weight.sizes(), ". Normalise over the last dim.");
  D9D_CHECK(x.is_floating_point() && weight.is_floating_point(), ConfigError, "[kernels::", op,
            "] expected floating x and weight, got ", x.scalar_type(), " and ", weight.scalar_type(),
            ". Cast them first.");
  D9D_CHECK(x.device() == weight.device(), ConfigError, "[kernels::", op, "] expected x and weight on one device, got ",
            x.device(), " and ", weight.device(), ". Move one of the two.");
}

}  // namespace d9d::kernels::detail
