#include "d9d/loop/checks/optimizer_groups.h"

#include <cstdint>
#include <map>
#include <string>

#include <c10/util/accumulate.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"

namespace d9d {
namespace {

struct Count {
  std::int64_t parameters = 0;
  std::int64_t elements = 0;
  void add(std::int64_t num_elements) {
    ++parameters;
    elements += num_elements;
  }
};

std::string text_of(const Count& count) {
  return cat(count.parameters, " of ", count.elements, count.elements == 1 ? " element" : " elements");
}

// A few names of parameters, to show what an expression is matched with.
std::string examples_of(const std::map<std::string, nlohmann::json>& all) {
  std::string text;
  for (const auto& [name, parameter] : all) {
    if (text.size() > 200) return text + ", ...";
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

}  // namespace

void check_groups(const DistContext& context, const ParameterGroups& groups,
                  const std::vector<NamedParameter>& parameters) {
  const std::vector<std::string> names = groups.names();
  if (names.size() == 1 && groups.decays_all()) return;
  nlohmann::json own = nlohmann::json::object();
  for (const NamedParameter& each : parameters) {
    own[each.name] = {groups.index_of(each.name), c10::multiply_integers(each.global_shape), groups.is_spared(each)};
  }
  std::map<std::string, nlohmann::json> all;
  for (const nlohmann::json& stages : all_gather_object(own, context.mesh(MeshDomain::kRegular).slice({"pp"}))) {
    for (const auto& [name, parameter] : stages.items()) all.emplace(name, parameter);
  }
  std::vector<Count> counts(names.size());
  Count spared;
  for (const auto& [name, parameter] : all) {
    counts[parameter[0].get<std::size_t>()].add(parameter[1]);
    if (parameter[2]) spared.add(parameter[1]);
  }
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool is_default = i + 1 == names.size();
    D9D_CHECK(is_default || counts[i].parameters > 0, ConfigError, "[loop::optimizer] expected trained parameters in ",
              "each group, got none in group '", names[i],
              "'. Its expression must match whole names, which no earlier ", "group has matched: ", examples_of(all),
              ".");
    text += cat(i == 0 ? "" : ", ", names[i], " ", text_of(counts[i]));
  }
  if (!groups.decays_all()) text += cat("; without weight decay ", text_of(spared));
  if (context.is_main_process()) context.log().info("parameters of the optimiser: ", text);
}

}  // namespace d9d
