#include "d9d/blocks/moe/grouped_linear.h"

#include <cmath>

#include "d9d/base/config/environment_record.h"

namespace d9d {
GroupedLinear::GroupedLinear(const GroupedLinearConfig& configuration)
    : config(configuration),
      weight(
          register_parameter("weight", {.shape = {config.num_groups, config.in_features, config.out_features},
                                        .init = init::uniform(1.0 / std::sqrt(static_cast<double>(config.in_features))),
                                        .role = ParameterRole::kGroupedLinear})) {}

void GroupedLinear::after_materialize(at::Device device) {
  kernels::GroupedMMRequest request = kernels::grouped_mm_request(device);
  request.configured = config.backend;
  request.environment = environment_record<GroupedMMConfig>("D9D_BACKEND_AUTO_GROUPED_MM");
  backend_ = kernels::resolve_grouped_mm(request).backend;
}

at::Tensor GroupedLinear::forward(const at::Tensor& x, const kernels::ExpertTokenGroups& groups) const {
  return kernels::grouped_mm(x, weight->local(), groups, backend_);
}

std::pair<at::Tensor, at::Tensor> grouped_linears_of(const at::Tensor& x, const kernels::ExpertTokenGroups& groups,
                                                     const ModulePtr<GroupedLinear>& first,
                                                     const ModulePtr<GroupedLinear>& second) {
  if (!first->is_plain() || !second->is_plain()) return {first(x, groups), second(x, groups)};
  const auto results =
      kernels::grouped_mms(x, {first->weight->local(), second->weight->local()}, groups, first->backend());
  return {results[0], results[1]};
}

}  // namespace d9d
