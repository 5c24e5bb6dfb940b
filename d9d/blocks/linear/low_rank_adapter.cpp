#include "d9d/blocks/linear/low_rank_adapter.h"

#include <algorithm>
#include <regex>

#include "d9d/blocks/linear/tensor_parallel_context.h"
#include "d9d/core/dtensor/layout.h"

namespace d9d {

bool is_adapter_parameter(const std::string& name) {
  static const std::regex kExpression(kAdapterParameters);
  return std::regex_match(name, kExpression);
}

void AdapterDropout::set_tensor_parallel_context(TensorParallelContextPtr context) {
  const auto is_cut = [](const ParameterPtr& factor) {
    return std::ranges::any_of(factor->placements(),
                               [](const Placement& placement) { return std::holds_alternative<Shard>(placement); });
  };
  if (is_cut(a_) || std::ranges::any_of(b_, is_cut)) {
    add_cut({.ranks = PositionCut(context->ranks())});
  } else {
    Dropout::set_tensor_parallel_context(std::move(context));
  }
}

std::vector<Dropout::Part> AdapterDropout::parts_of(const at::Tensor& mask) const {
  std::vector<Part> parts = Dropout::parts_of(mask);
  if (a_->mesh().axes().empty()) return parts;
  const LocalBox features = local_box(a_->global_shape(), a_->mesh(), a_->placements());
  for (Part& part : parts) {
    part.window.start.back() = features.start[1];
    part.window.global_shape.back() = a_->global_shape()[1];
  }
  return parts;
}

}  // namespace d9d
