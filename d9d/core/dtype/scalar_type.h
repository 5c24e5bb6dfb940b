// The names of configuration for LibTorch's types.
#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

#include "d9d/base/dtype.h"

namespace d9d {

[[nodiscard]] c10::ScalarType to_scalar_type(Dtype dtype);
// The inverse; none for types that a configuration cannot name.
[[nodiscard]] std::optional<Dtype> find_dtype(c10::ScalarType type);
// In which gradients of parameters of this type are summed over microbatches and ranks: `wanted`; none: float32, or
// float64 for float64 parameters.
[[nodiscard]] c10::ScalarType gradient_dtype_of(c10::ScalarType parameter, std::optional<Dtype> wanted);

}  // namespace d9d
