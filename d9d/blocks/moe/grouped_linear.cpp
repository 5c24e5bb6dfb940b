#include "d9d/blocks/moe/grouped_linear.h"

#include <cmath>

#include <ATen/ATen.h>

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
  const at::Tensor y = kernels::grouped_mm(x, weight->local(), groups, backend_);
  return adapter() ? y + (*adapter())(x, groups) : y;
}

void GroupedLinear::add_adapter(const LowRankConfig& low_rank) {
  const auto make = [&](std::int64_t in_features, std::int64_t out_features) {
    return make_module<GroupedLinear>(
        GroupedLinearConfig{config.num_groups, in_features, out_features, config.backend});
  };
  const ModulePtr<GroupedLinear> b = make(low_rank.rank, config.out_features);
  b->weight->set_init(init::zeros());
  put_new_adapter(make(config.in_features, low_rank.rank), b, low_rank, weight->local().scalar_type());
}

std::pair<at::Tensor, at::Tensor> grouped_linears_of(const at::Tensor& x, const kernels::ExpertTokenGroups& groups,
                                                     const ModulePtr<GroupedLinear>& first,
                                                     const ModulePtr<GroupedLinear>& second) {
  if (!first->is_plain() || !second->is_plain()) return {first(x, groups), second(x, groups)};
  const auto results =
      kernels::grouped_mms(x, {first->weight->local(), second->weight->local()}, groups, first->backend());
  const auto& of_first = first->adapter();
  const auto& of_second = second->adapter();
  if (of_first && of_second && of_first->a->config.out_features == of_second->a->config.out_features) {
    const auto [hidden_first, hidden_second] = grouped_linears_of(x, groups, of_first->a, of_second->a);
    return {results[0] + of_first->from_hidden(hidden_first, groups),
            results[1] + of_second->from_hidden(hidden_second, groups)};
  }
  return {of_first ? results[0] + (*of_first)(x, groups) : results[0],
          of_second ? results[1] + (*of_second)(x, groups) : results[1]};
}

}  // namespace d9d
