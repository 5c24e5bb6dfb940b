// Interpolates a multiplier between two values within a phase of a schedule.
//
// Example
//   d9d::interpolate(d9d::CosineCurveConfig{}, 1.0, 0.0, 0.5);  // 0.5
#pragma once

#include <string_view>

#include "d9d/lr_scheduler/curve_config.h"

namespace d9d {

// With a = start, b = end and p = progress in [0, 1]:
//   linear       a + (b - a) p
//   cosine       b + (a - b) (1 + cos(pi p)) / 2
//   poly         a + (b - a) p^power
//   exponential  a^(1-p) b^p, where a and b below 1e-8 count as 1e-8
//   inverse_sqrt a / sqrt(1 + (a^2 / b^2 - 1) p), for a and b above 0
[[nodiscard]] double interpolate(const CurveConfig& curve, double start, double end, double progress);

// "linear", as in {"type": "linear"}.
[[nodiscard]] std::string_view name_of(const CurveConfig& curve);

}  // namespace d9d
