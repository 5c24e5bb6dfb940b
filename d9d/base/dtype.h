// Floating-point types that a configuration may name, spelt as in PyTorch. Uses no torch headers.
//
// Example
//   Dtype dtype = Dtype::kBFloat16;   // in JSON: "bfloat16"
#pragma once

#include "d9d/base/enum_names.h"

namespace d9d {

enum class Dtype { kFloat64, kFloat32, kBFloat16, kFloat16 };

constexpr auto enum_names(Dtype) {
  return std::to_array<EnumName<Dtype>>({{Dtype::kFloat64, "float64"},
                                         {Dtype::kFloat32, "float32"},
                                         {Dtype::kBFloat16, "bfloat16"},
                                         {Dtype::kFloat16, "float16"}});
}

}  // namespace d9d
