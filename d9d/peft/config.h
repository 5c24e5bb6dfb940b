// What of a model is trained, and with which adapters: one of the records below, selected in JSON by "kind".
//
// Example
//   {"kind": "lora", "module_name_pattern": ".*_proj", "params": {"r": 8, "alpha": 16, "dropout": 0}}
//   PeftConfig method = LoraConfig{.module_name_pattern = ".*_proj", .params = {.r = 8, .alpha = 16.0}};
//
// Patterns are regular expressions of ECMAScript over whole dotted names of modules, as Module::for_each_module() has
// them; the model itself is "".
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "d9d/base/record.h"

namespace d9d {

struct LoraParams {
  std::int64_t r = 0;       // rank
  double alpha = 0.0;       // the term is scaled by alpha / r
  double dropout = 0.0;     // of the adapter's input, in training
  bool use_rslora = false;  // scale by alpha / sqrt(r) instead (Kalajdzievski, arXiv:2312.03732)

  [[nodiscard]] double scale() const;

  static constexpr auto fields() {
    using Lora = LoraParams;
    return record<Lora>(required("r", &Lora::r, at_least(1)), required("alpha", &Lora::alpha, greater_than(0)),
                        required("dropout", &Lora::dropout, half_open(0, 1)),
                        defaulted("use_rslora", &Lora::use_rslora));
  }
};

// Adapters of low rank for each linear, group of experts, embedding and language-modelling head whose name matches.
struct LoraConfig {
  std::string module_name_pattern = {};  // regular expression of whole names of modules
  LoraParams params = {};                // of each adapter

  void validate(const ConfigPath& path) const;

  static constexpr Tag kTag = {"kind", "lora"};
  static constexpr auto fields() {
    using Lora = LoraConfig;
    return record<Lora>(required("module_name_pattern", &Lora::module_name_pattern), required("params", &Lora::params));
  }
};

// LoRA with magnitudes (Liu et al., DoRA, arXiv:2402.09353), of linears between hidden activations alone: the
// adapted weight has the directions of rows, and trained magnitudes their norms.
struct DoraConfig {
  std::string module_name_pattern = {};  // regular expression of whole names of modules
  LoraParams params = {};                // of each adapter

  void validate(const ConfigPath& path) const;

  static constexpr Tag kTag = {"kind", "dora"};
  static constexpr auto fields() {
    using Dora = DoraConfig;
    return record<Dora>(required("module_name_pattern", &Dora::module_name_pattern), required("params", &Dora::params));
  }
};

// Trains every parameter of the modules whose name matches, and of all modules below. Left out are weights and biases
// that have adapters, unless the name of their own module matches. Weights of a tied head are the embedding's.
struct FullTuneConfig {
  std::string module_name_pattern = {};  // regular expression of whole names of modules

  void validate(const ConfigPath& path) const;

  static constexpr Tag kTag = {"kind", "full_tune"};
  static constexpr auto fields() {
    return record<FullTuneConfig>(required("module_name_pattern", &FullTuneConfig::module_name_pattern));
  }
};

struct StackConfig;
using PeftConfig = std::variant<LoraConfig, DoraConfig, FullTuneConfig, StackConfig>;

// All of its methods, which may be stacks.
struct StackConfig {
  std::vector<PeftConfig> methods = {};  // of any kind, one or more

  void validate(const ConfigPath& path) const;

  static constexpr Tag kTag = {"kind", "stack"};
  static constexpr auto fields() { return record<StackConfig>(required("methods", &StackConfig::methods)); }
};

// A union of records that contains itself: the list inside it refers to the union when it is used.
template <>
const ValueType& json_type<std::vector<PeftConfig>>();

extern template const ValueType& json_type<PeftConfig>();

// Reads {"kind": ...}. Throws ConfigError that names the key.
[[nodiscard]] PeftConfig peft_method_from_config(const nlohmann::json& config);

}  // namespace d9d
