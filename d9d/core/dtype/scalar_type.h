// The names of configuration for LibTorch's types.
#pragma once

#include <c10/core/ScalarType.h>

#include "d9d/base/dtype.h"

namespace d9d {

[[nodiscard]] c10::ScalarType to_scalar_type(Dtype dtype);

}  // namespace d9d
