#include "d9d/loop/config/memory_budget_config.h"

#include "d9d/base/config/value_type.h"

namespace d9d {
namespace {

constexpr std::string_view kAuto = "auto";

class DeviceBudgetType final : public ValueType {
  void parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const override {
    auto& budget = *static_cast<DeviceBudget*>(target);
    budget.size.reset();
    if (json != kAuto) json_type<ByteSize>().parse(json, path, range, &budget.size.emplace());
  }

  Json write(const void* value) const override {
    const auto& budget = *static_cast<const DeviceBudget*>(value);
    return budget.size ? json_type<ByteSize>().write(&*budget.size) : Json(kAuto);
  }

  Json schema(const Range& range) const override {
    return {{"anyOf", Json::array({Json{{"const", kAuto}}, json_type<ByteSize>().schema(range)})}};
  }
};

}  // namespace

template <>
const ValueType& json_type<DeviceBudget>() {
  static const DeviceBudgetType type;
  return type;
}

}  // namespace d9d
