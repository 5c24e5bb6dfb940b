// Conversions between the dtype names of configurations and LibTorch's types.
#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

#include "d9d/base/dtype.h"

namespace d9d {

[[nodiscard]] c10::ScalarType to_scalar_type(Dtype dtype);
// The inverse; none for types that a configuration has no name for.
[[nodiscard]] std::optional<Dtype> find_dtype(c10::ScalarType type);
// The dtype in which gradients of parameters of type `parameter` are summed over microbatches and ranks: `wanted`, or
// if that is none, float64 for float64 parameters and float32 for all others.
[[nodiscard]] c10::ScalarType gradient_dtype_of(c10::ScalarType parameter, std::optional<Dtype> wanted);

}  // namespace d9d
