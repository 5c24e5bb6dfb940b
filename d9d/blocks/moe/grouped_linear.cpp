#include "d9d/blocks/moe/grouped_linear.h"

#include <cmath>

#include "d9d/base/config/json_text.h"
#include "d9d/base/config/record_json.h"
#include "d9d/base/environment.h"

namespace d9d {
namespace {

struct ToKind {
  kernels::GroupedMMKind operator()(const TorchGroupedMMConfig&) const { return kernels::GroupedMMKind::kTorch; }
  kernels::GroupedMMKind operator()(const QuackGroupedMMConfig&) const { return kernels::GroupedMMKind::kQuack; }
  kernels::GroupedMMKind operator()(const GroupedGemmGroupedMMConfig&) const {
    return kernels::GroupedMMKind::kGroupedGemm;
  }
  kernels::GroupedMMKind operator()(const CutlassGroupedMMConfig&) const { return kernels::GroupedMMKind::kCutlass; }
  kernels::GroupedMMKind operator()(const EagerGroupedMMConfig&) const { return kernels::GroupedMMKind::kEager; }
};

}  // namespace

GroupedLinear::GroupedLinear(const GroupedLinearConfig& configuration)
    : config(configuration),
      weight(register_parameter("weight",
                                {.shape = {config.num_groups, config.in_features, config.out_features},
                                 .init = init::uniform(1.0 / std::sqrt(static_cast<double>(config.in_features)))})) {}

void GroupedLinear::after_materialize(at::Device device) {
  kernels::GroupedMMRequest request = kernels::grouped_mm_request(device);
  if (config.backend) request.configured = std::visit(ToKind{}, *config.backend);
  if (const auto text = environment_variable("D9D_BACKEND_AUTO_GROUPED_MM")) {
    request.environment =
        std::visit(ToKind{}, parse_record<GroupedMMConfig>(parse_json_text(*text, "D9D_BACKEND_AUTO_GROUPED_MM"),
                                                           {.source = "D9D_BACKEND_AUTO_GROUPED_MM"}));
  }
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

GroupedLinearConfig GroupedLinear::with_features(std::int64_t in_features, std::int64_t out_features) const {
  return {.num_groups = config.num_groups,
          .in_features = in_features,
          .out_features = out_features,
          .backend = config.backend};
}

}  // namespace d9d
