// Which options each parameter of an optimiser has. Groups are matched in their order against a parameter's whole name:
// the first that matches decides, and parameters that none matches are the group "default".
//
// Example
//   const ParameterGroups groups(AdamWConfig{
//       .lr = 1e-3, .groups = {{.group = {.name = "head", .parameters = "lm_head\\..*", .lr_factor = 0.1}}}});
//   groups.options_of({"lm_head.regular.weight", weight}).lr_factor;  // 0.1
//   groups.names();                                                   // {"head", "default"}
#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "d9d/base/name_regex.h"
#include "d9d/optim/config.h"
#include "d9d/optim/optimizer_protocol.h"

namespace d9d {

// What parameters of one optimiser can differ in. An optimiser reads what it has of these.
struct ParameterOptions {
  double lr_factor = 1.0;
  double weight_decay = 0.0;
  std::pair<double, double> betas = {};
  double momentum = 0.0;
  auto operator<=>(const ParameterOptions&) const = default;
};

class ParameterGroups {
 public:
  // Config: an alternative of OptimizerConfig. Throws ConfigError, whose text begins with `place`, for names that are
  // empty, repeat, are "default" or contain '/', for what is no regular expression, and for numbers out of range.
  template <class Config>
  explicit ParameterGroups(const Config& config, const std::string& place = "[optim::groups] ")
      : decay_all_(config.decay_all) {
    default_.weight_decay = config.weight_decay;
    if constexpr (requires { config.betas; }) default_.betas = config.betas;
    if constexpr (requires { config.momentum; }) default_.momentum = config.momentum;
    check(default_, place);
    for (const auto& each : config.groups) {
      ParameterOptions options = default_;
      if constexpr (requires { each.betas; }) options.betas = each.betas.value_or(default_.betas);
      if constexpr (requires { each.momentum; }) options.momentum = each.momentum.value_or(default_.momentum);
      add(each.group, options, place);
    }
  }

  [[nodiscard]] bool decays_all() const { return decay_all_; }
  // The groups in their order, then "default".
  [[nodiscard]] std::vector<std::string> names() const;
  // The index in names() of a parameter's group. name: of the parameter.
  [[nodiscard]] std::size_t index_of(const std::string& name) const;
  [[nodiscard]] ParameterOptions options_of(const NamedParameter& parameter) const;
  // Whether decay_all = false takes the parameter's weight decay: it is a norm, a bias, another vector or an embedding,
  // and its group has no weight decay of its own.
  [[nodiscard]] bool is_spared(const NamedParameter& parameter) const;
  // The factors of the learning rate by the groups' names; empty without groups.
  [[nodiscard]] std::map<std::string, double> rate_factors() const;

 private:
  struct Group {
    std::string name;
    NameRegex regex;
    ParameterOptions options;
    bool has_own_decay = false;
  };

  static void check(const ParameterOptions& options, const std::string& place);
  void add(const ParameterGroupConfig& config, ParameterOptions options, const std::string& place);

  bool decay_all_ = true;
  ParameterOptions default_;
  std::vector<Group> groups_;
};

}  // namespace d9d
