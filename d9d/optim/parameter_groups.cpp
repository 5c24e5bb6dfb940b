#include "d9d/optim/parameter_groups.h"

#include <algorithm>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr const char* kDefault = "default";

}  // namespace

void ParameterGroups::check(const ParameterOptions& options, const std::string& place) {
  const auto is_beta = [](double beta) { return beta >= 0 && beta < 1; };
  const auto& [beta1, beta2] = options.betas;
  D9D_CHECK(options.weight_decay >= 0 && options.momentum >= 0, ConfigError, place,
            "expected weight_decay and momentum >= 0, got ", options.weight_decay, " and ", options.momentum,
            ". Use positive numbers.");
  D9D_CHECK(is_beta(beta1) && is_beta(beta2), ConfigError, place, "expected betas in [0, 1), got ", beta1, " and ",
            beta2, ". The usual ones are 0.9 and 0.999.");
}

void ParameterGroups::add(const ParameterGroupConfig& config, ParameterOptions options, const std::string& place) {
  D9D_CHECK(!config.name.empty() && config.name != kDefault && config.name.find('/') == std::string::npos, ConfigError,
            place, "expected names other than '', '", kDefault, "' and such with '/', got '", config.name,
            "'. Rename the group.");
  D9D_CHECK(std::ranges::find(groups_, config.name, &Group::name) == groups_.end(), ConfigError, place,
            "expected distinct names, got '", config.name, "' twice. Join the expressions by '|', or rename one.");
  D9D_CHECK(config.lr_factor > 0, ConfigError, place, "expected lr_factor > 0 of group '", config.name, "', got ",
            config.lr_factor, ". What shall not be trained is frozen, not in a group.");
  options.lr_factor = config.lr_factor;
  options.weight_decay = config.weight_decay.value_or(options.weight_decay);
  check(options, place);
  groups_.push_back(
      {.name = config.name,
       .regex = NameRegex(config.parameters, place, cat("of names of parameters for group '", config.name, "'")),
       .options = options,
       .has_own_decay = config.weight_decay.has_value()});
}

std::vector<std::string> ParameterGroups::names() const {
  std::vector<std::string> names;
  for (const Group& group : groups_) names.push_back(group.name);
  names.emplace_back(kDefault);
  return names;
}

std::size_t ParameterGroups::index_of(const std::string& name) const {
  const auto found = std::ranges::find_if(groups_, [&](const Group& group) { return group.regex.matches(name); });
  return static_cast<std::size_t>(found - groups_.begin());
}

ParameterOptions ParameterGroups::options_of(const NamedParameter& parameter) const {
  const std::size_t index = index_of(parameter.name);
  ParameterOptions options = index < groups_.size() ? groups_[index].options : default_;
  if (is_spared(parameter)) options.weight_decay = 0;
  return options;
}

bool ParameterGroups::is_spared(const NamedParameter& parameter) const {
  if (decay_all_) return false;
  const std::size_t index = index_of(parameter.name);
  if (index < groups_.size() && groups_[index].has_own_decay) return false;
  const auto num_dims = static_cast<std::size_t>(parameter.global_shape.empty() ? parameter.tensor.dim()
                                                                                : std::ssize(parameter.global_shape));
  return is_norm_vector_or_embedding(parameter.role, num_dims);
}

std::map<std::string, double> ParameterGroups::rate_factors() const {
  if (groups_.empty()) return {};
  std::map<std::string, double> factors = {{kDefault, default_.lr_factor}};
  for (const Group& group : groups_) factors[group.name] = group.options.lr_factor;
  return factors;
}

}  // namespace d9d
