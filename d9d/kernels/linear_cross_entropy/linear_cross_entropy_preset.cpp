#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_preset.h"

#include <limits>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "d9d/base/check.h"
#include "d9d/base/config/name_list.h"

namespace d9d::kernels {
namespace {

double distance_above_one(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return std::numeric_limits<c10::BFloat16>::epsilon();
    case at::kHalf:
      return std::numeric_limits<c10::Half>::epsilon();
    case at::kFloat:
      return std::numeric_limits<float>::epsilon();
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    default:
      throw ConfigError(cat("[kernels::linear_cross_entropy] expected hidden in bf16, fp16, fp32 or fp64, got ", dtype,
                            ". Convert it."));
  }
}

}  // namespace

LinearCrossEntropyPreset linear_cross_entropy_preset(std::string_view name) {
  std::vector<std::string_view> names;
  for (const auto& entry : enum_names(LinearCrossEntropyPreset())) {
    if (entry.name == name) return entry.value;
    names.push_back(entry.name);
  }
  throw ConfigError(cat("[kernels::linear_cross_entropy] expected a preset, one of ", quoted_list(names), ", got '",
                        name, "'. Use one of them."));
}

double automatic_filter_eps(at::ScalarType hidden_dtype) { return distance_above_one(hidden_dtype) / 32; }

LinearCrossEntropyOptions with_preset(LinearCrossEntropyOptions options, LinearCrossEntropyPreset preset,
                                      at::ScalarType hidden_dtype) {
  using Preset = LinearCrossEntropyPreset;
  options.filter_e_grad = preset == Preset::kCce || preset == Preset::kCceKahanFullC;
  options.filter_c_grad = preset == Preset::kCce || preset == Preset::kCceKahanFullE;
  options.filter_eps.reset();
  if (options.filter_e_grad || options.filter_c_grad) options.filter_eps = automatic_filter_eps(hidden_dtype);
  return options;
}

}  // namespace d9d::kernels
