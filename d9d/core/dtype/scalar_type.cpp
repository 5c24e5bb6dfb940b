#include "d9d/core/dtype/scalar_type.h"

#include <ATen/OpMathType.h>

#include "d9d/base/check.h"

namespace d9d {

c10::ScalarType to_scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64:
      return c10::ScalarType::Double;
    case Dtype::kFloat32:
      return c10::ScalarType::Float;
    case Dtype::kBFloat16:
      return c10::ScalarType::BFloat16;
    case Dtype::kFloat16:
      return c10::ScalarType::Half;
  }
  throw InternalError("[core::dtype] unknown dtype");
}

std::optional<Dtype> find_dtype(c10::ScalarType type) {
  for (const auto& entry : enum_names(Dtype())) {
    if (to_scalar_type(entry.value) == type) return entry.value;
  }
  return std::nullopt;
}

c10::ScalarType gradient_dtype_of(c10::ScalarType parameter, std::optional<Dtype> wanted) {
  return wanted ? to_scalar_type(*wanted) : at::toOpMathType(parameter);
}

}  // namespace d9d
