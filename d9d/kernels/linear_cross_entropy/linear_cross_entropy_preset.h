// The implementations of Cut Cross-Entropy by the names of its Python package, as options of linear_cross_entropy.
//
// Example
//   const auto preset = kernels::linear_cross_entropy_preset("cce");
//   kernels::linear_cross_entropy(hidden, weight, labels, kernels::with_preset({}, preset, hidden.scalar_type()));
#pragma once

#include <cstdint>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "d9d/base/enum_names.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy.h"

namespace d9d::kernels {

// There the names also say where sums of gradients are in bf16, in fp32 or compensated (Kahan). Here all sums are in
// at least fp32, so names that differ in that alone mean the same: exact, kahan_full and kahan_full_c_full_e.
enum class LinearCrossEntropyPreset : std::uint8_t {
  kCce,                 // filters the gradients of hidden and of the weights
  kCceExact,            // no filter
  kCceKahanFull,        // no filter
  kCceKahanFullC,       // the whole gradient of c, the weights: filters that of e, hidden
  kCceKahanFullE,       // the whole gradient of e, hidden: filters that of c, the weights
  kCceKahanFullCFullE,  // no filter
};
constexpr auto enum_names(LinearCrossEntropyPreset) {
  using Preset = LinearCrossEntropyPreset;
  return std::to_array<EnumName<Preset>>({{Preset::kCce, "cce"},
                                          {Preset::kCceExact, "cce_exact"},
                                          {Preset::kCceKahanFull, "cce_kahan_full"},
                                          {Preset::kCceKahanFullC, "cce_kahan_full_c"},
                                          {Preset::kCceKahanFullE, "cce_kahan_full_e"},
                                          {Preset::kCceKahanFullCFullE, "cce_kahan_full_c_full_e"}});
}

// Throws ConfigError with the list of names if `name` is not one of them.
[[nodiscard]] LinearCrossEntropyPreset linear_cross_entropy_preset(std::string_view name);

// The filter eps that the package calls "auto": the distance from 1 to the next number of the dtype, / 32. 2^-12 for
// bf16, 2^-15 for fp16, 2^-28 for fp32, 2^-57 for fp64.
[[nodiscard]] double automatic_filter_eps(at::ScalarType hidden_dtype);

// `options` with the preset's filter, whose eps is the automatic one.
[[nodiscard]] LinearCrossEntropyOptions with_preset(LinearCrossEntropyOptions options, LinearCrossEntropyPreset preset,
                                                    at::ScalarType hidden_dtype);

}  // namespace d9d::kernels
