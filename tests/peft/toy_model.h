// A small model with what methods train: two linears, one of them with a bias, experts and a norm.
//
// Example
//   auto model = make_module<test::ToyModel>();
//   const PeftInjection injected = inject_peft(method, *model);
//   test::fill(*model);
#pragma once

#include <ATen/ATen.h>

#include "d9d/blocks/linear/linear.h"
#include "d9d/blocks/moe/grouped_linear.h"
#include "d9d/blocks/normalization/rms_norm.h"

namespace d9d::test {

class ToyModel : public Module {
 public:
  ToyModel()
      : norm(register_module<RMSNorm>("norm", RMSNormConfig{10, 1e-6, false})),
        proj(register_module<Linear>("proj", LinearConfig{10, 20})),
        biased(register_module<Linear>("biased", LinearConfig{20, 6, /*has_bias=*/true})),
        experts(register_module<GroupedLinear>(
            "experts", GroupedLinearConfig{.num_groups = 3, .in_features = 6, .out_features = 5})),
        router(register_module<Linear>("router", LinearConfig{6, 3, false, ParameterRole::kRouter})) {}
  // x [9, 10] -> [9, 5]; the experts have 4, 0 and 5 of the rows.
  at::Tensor forward(const at::Tensor& x) const {
    const auto groups = kernels::ExpertTokenGroups::from_counts(at::tensor({4, 0, 5}));
    return experts(biased(proj(norm(x))), groups);
  }

  const ModulePtr<RMSNorm> norm;
  const ModulePtr<Linear> proj;
  const ModulePtr<Linear> biased;
  const ModulePtr<GroupedLinear> experts;
  const ModulePtr<Linear> router;
};

// Gives memory and random values to every parameter, also where adapters begin with zero.
inline void fill(Module& model, at::ScalarType dtype = at::kDouble) {
  model.to(dtype);
  for (const auto& [name, parameter] : model.named_parameters()) parameter->set_init(init::normal(0.5));
  model.materialize(at::kCPU);
  model.reset_parameters(/*base_seed=*/3);
}

}  // namespace d9d::test
