#include "d9d/modules/trained_leaves.h"

namespace d9d {

std::vector<at::Tensor> trained_leaves(const Module& module) {
  std::vector<at::Tensor> leaves;
  for (const auto& [name, parameter] : module.named_parameters()) {
    if (parameter->requires_grad()) leaves.push_back(parameter->local());
  }
  return leaves;
}

}  // namespace d9d
