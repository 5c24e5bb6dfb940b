#include "d9d/peft/magnitudes.h"

#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/blocks/linear/linear.h"
#include "d9d/core/dtensor/redistribute.h"

namespace d9d {

void begin_magnitudes(Module& model, const std::set<std::string>& but_for) {
  const at::NoGradGuard no_grad;
  std::vector<ParameterPtr> begun;
  std::set<const Module*> seen;  // a module of several names has that of the first in but_for
  model.for_each_module([&](const std::string& name, Module& module) {
    const auto* const linear = dynamic_cast<const Linear*>(&module);
    if (linear == nullptr || !linear->has_magnitude() || !seen.insert(&module).second) return;
    if (but_for.contains((name.empty() ? "" : name + ".") + "lora_magnitude_vector.weight")) return;
    const auto& adapter = *linear->adapter();
    const at::Tensor weight = full_tensor(linear->weight->dtensor());
    const auto whole = [&](const ParameterPtr& factor) {
      return full_tensor(factor->dtensor()).to(weight.scalar_type());
    };
    const at::Tensor squares =
        squares_of_rows(weight, whole(adapter.a->weight), whole(adapter.b->weight), adapter.scale);
    adapter.magnitude->weight->copy_from(squares.clamp_min(0).sqrt());
    begun.push_back(adapter.magnitude->weight);
  });
  update_local(begun);
}

}  // namespace d9d
