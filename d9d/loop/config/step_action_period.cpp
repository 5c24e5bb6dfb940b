#include "d9d/loop/config/step_action_period.h"

#include "d9d/base/check.h"
#include "d9d/base/config/read_scalar.h"
#include "d9d/base/config/value_type.h"

namespace d9d {
namespace {

class StepActionPeriodType final : public ValueType {
  void parse(const Json& json, const ConfigPath& path, const Range&, void* target) const override {
    auto& period = *static_cast<StepActionPeriod*>(target);
    for (const auto& mode : enum_names(StepActionMode{})) {
      if (json == mode.name) {
        period.value = mode.value;
        return;
      }
    }
    const auto steps = coerce_integer(json);
    D9D_CHECK(steps && *steps >= 1, ConfigError, path,
              "expected a number of steps >= 1, 'last_step' or 'disable', got ", json_excerpt(json),
              ". Change the value.");
    period.value = EverySteps{*steps};
  }

  Json write(const void* value) const override {
    const auto& period = static_cast<const StepActionPeriod*>(value)->value;
    if (const auto* every = std::get_if<EverySteps>(&period)) return every->steps;
    return enum_name(std::get<StepActionMode>(period));
  }

  Json schema(const Range&) const override {
    Json names = Json::array();
    for (const auto& mode : enum_names(StepActionMode{})) names.push_back(mode.name);
    return {{"anyOf", Json::array({Json{{"type", "integer"}, {"minimum", 1}}, Json{{"enum", names}}})}};
  }
};

}  // namespace

const ValueType& StepActionPeriod::json_type() {
  static const StepActionPeriodType type;
  return type;
}

}  // namespace d9d
