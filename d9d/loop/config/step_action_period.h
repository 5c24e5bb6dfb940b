// When a periodic action happens: every N optimiser steps, at the last step only, or never. In JSON: 10, "last_step" or
// "disable".
//
// Example
//   StepActionPeriod period = EverySteps{10};
//   period = StepActionMode::kLastStep;
#pragma once

#include <cstdint>
#include <variant>

#include "d9d/base/enum_names.h"
#include "d9d/base/record.h"

namespace d9d {

class ValueType;

struct EverySteps {
  std::int64_t steps = 1;  // >= 1
  bool operator==(const EverySteps&) const = default;
};

enum class StepActionMode { kLastStep, kDisable };
constexpr auto enum_names(StepActionMode) {
  return std::to_array<EnumName<StepActionMode>>(
      {{StepActionMode::kLastStep, "last_step"}, {StepActionMode::kDisable, "disable"}});
}

struct StepActionPeriod {
  std::variant<EverySteps, StepActionMode> value = {};

  bool operator==(const StepActionPeriod&) const = default;

  [[nodiscard]] static const ValueType& json_type();
};

}  // namespace d9d
