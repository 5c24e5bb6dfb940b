// The names of configuration for LibTorch's types.
#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

#include "d9d/base/dtype.h"

namespace d9d {

[[nodiscard]] c10::ScalarType to_scalar_type(Dtype dtype);
// The inverse; none for types that a configuration cannot name.
[[nodiscard]] std::optional<Dtype> find_dtype(c10::ScalarType type);

}  // namespace d9d
