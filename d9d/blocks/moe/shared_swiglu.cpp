#include "d9d/blocks/moe/shared_swiglu.h"

#include <ATen/ATen.h>

namespace d9d {

SharedSwiGLU::SharedSwiGLU(std::int64_t hidden_size, const SharedExpertParameters& parameters)
    : expert(register_module<SwiGLU>("expert", SwiGLUConfig{hidden_size, parameters.intermediate_size})),
      gate(parameters.enable_gate ? register_module<Linear>("gate", LinearConfig{.in_features = hidden_size,
                                                                                 .out_features = 1,
                                                                                 .role = ParameterRole::kRouter})
                                  : nullptr) {}

at::Tensor SharedSwiGLU::forward(const at::Tensor& x) const {
  return gate ? expert(x) * at::sigmoid(gate(x)) : expert(x);
}

}  // namespace d9d
