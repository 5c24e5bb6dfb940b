#include "d9d/peft/config.h"

#include <cmath>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/base/name_regex.h"

namespace d9d {
namespace {

struct MethodsType final : ValueType {
  void parse(const Json& json, const ConfigPath& path, const Range& /*range*/, void* target) const override {
    list().parse(json, path, {}, target);
  }
  [[nodiscard]] Json write(const void* value) const override { return list().write(value); }
  [[nodiscard]] Json schema(const Range& /*range*/) const override {
    return {{"type", "array"}, {"items", {{"type", "object"}, {"required", {"kind"}}}}};
  }

 private:
  // Described at the first use, since the description of its elements contains this type.
  static const ListType& list() {
    static const detail::TypeOf<std::vector<PeftConfig>> kList;
    return kList;
  }
};

}  // namespace

double LoraParams::scale() const {
  const auto rank = static_cast<double>(r);
  return alpha / (use_rslora ? std::sqrt(rank) : rank);
}

void LoraConfig::validate(const ConfigPath& path) const {
  (void)NameRegex(module_name_pattern, cat(path / "module_name_pattern"), "of names of modules");
}

void DoraConfig::validate(const ConfigPath& path) const {
  (void)NameRegex(module_name_pattern, cat(path / "module_name_pattern"), "of names of modules");
}

void FullTuneConfig::validate(const ConfigPath& path) const {
  (void)NameRegex(module_name_pattern, cat(path / "module_name_pattern"), "of names of modules");
}

void StackConfig::validate(const ConfigPath& path) const {
  D9D_CHECK(!methods.empty(), ConfigError, path / "methods", "expected one or more methods, got none. Add one.");
}

template <>
const ValueType& json_type<std::vector<PeftConfig>>() {
  static const MethodsType kType;
  return kType;
}

template const ValueType& json_type<PeftConfig>();

PeftConfig peft_method_from_config(const nlohmann::json& config) { return parse_record<PeftConfig>(Json(config)); }

}  // namespace d9d
