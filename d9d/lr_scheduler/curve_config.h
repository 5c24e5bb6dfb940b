// The way of a multiplier between two values, in JSON. curve.h has the formulas.
//
// Example
//   {"type": "poly", "power": 0.5}
#pragma once

#include <variant>

#include "d9d/base/record.h"

namespace d9d {

struct LinearCurveConfig {
  static constexpr Tag kTag = {"type", "linear"};
  static constexpr auto fields() { return record<LinearCurveConfig>(); }
};
struct CosineCurveConfig {
  static constexpr Tag kTag = {"type", "cosine"};
  static constexpr auto fields() { return record<CosineCurveConfig>(); }
};
struct ExponentialCurveConfig {
  static constexpr Tag kTag = {"type", "exponential"};
  static constexpr auto fields() { return record<ExponentialCurveConfig>(); }
};
struct PolyCurveConfig {
  double power = 2.0;  // of the share of the phase that is over: 1 is a straight line

  static constexpr Tag kTag = {"type", "poly"};
  static constexpr auto fields() { return record<PolyCurveConfig>(defaulted("power", &PolyCurveConfig::power)); }
};
// Falls with the root of the steps; both multipliers must be above 0.
struct InverseSqrtCurveConfig {
  static constexpr Tag kTag = {"type", "inverse_sqrt"};
  static constexpr auto fields() { return record<InverseSqrtCurveConfig>(); }
};
using CurveConfig =
    std::variant<LinearCurveConfig, CosineCurveConfig, ExponentialCurveConfig, PolyCurveConfig, InverseSqrtCurveConfig>;

}  // namespace d9d
