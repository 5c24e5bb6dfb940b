#include "d9d/modules/gradient_reduction.h"

#include <algorithm>

namespace d9d {

std::vector<std::shared_ptr<GradientReduction>> gradient_reductions(Module& module) {
  std::vector<std::shared_ptr<GradientReduction>> found;
  module.for_each_module([&](const std::string&, Module& each) {
    for (const auto& hook : each.hooks()) {
      const auto reduction = hook->gradient_reduction();
      if (reduction != nullptr && std::ranges::find(found, reduction) == found.end()) found.push_back(reduction);
    }
  });
  return found;
}

}  // namespace d9d
