// Reproducible data, and Qwen3 models small enough to run many of.
#pragma once

#include <ATen/ATen.h>

#include "d9d/core/rng/element_random.h"
#include "d9d/modules/base/module.h"
#include "d9d/modules/models/qwen3_dense/model.h"
#include "d9d/modules/models/qwen3_moe/model.h"

namespace d9d::test {

// Standard normal numbers decided by shape and key.
[[nodiscard]] inline at::Tensor normal(at::IntArrayRef shape, std::uint64_t key, at::ScalarType dtype = at::kDouble) {
  const at::Tensor tensor = at::empty(shape, dtype);
  fill_normal(tensor, whole_window(tensor), {.key = key}, 0.0, 1.0);
  return tensor;
}

[[nodiscard]] inline at::Tensor normal_leaf(at::IntArrayRef shape, std::uint64_t key,
                                            at::ScalarType dtype = at::kDouble) {
  return normal(shape, key, dtype).set_requires_grad(true);
}

// Storage and values, decided by names.
template <class T>
ModulePtr<T> initialized(const ModulePtr<T>& module, at::ScalarType dtype = at::kDouble, std::uint64_t base_seed = 1) {
  module->to(dtype);
  module->materialize(at::kCPU);
  module->reset_parameters(base_seed);
  return module;
}

template <class Parameters>
[[nodiscard]] Parameters tiny_decoder() {
  Parameters parameters;
  parameters.layer.hidden_size = 16;
  parameters.layer.intermediate_size = 12;
  parameters.layer.num_attention_heads = 2;
  parameters.layer.num_key_value_heads = 1;
  parameters.layer.head_dim = 8;
  parameters.num_hidden_layers = 4;
  parameters.max_position_ids = 16;
  parameters.split_vocab_size = {{"regular", 20}, {"added", 3}};
  parameters.split_vocab_order = {"regular", "added"};
  return parameters;
}

[[nodiscard]] inline Qwen3DenseParameters tiny_dense() { return tiny_decoder<Qwen3DenseParameters>(); }

// With an auxiliary loss.
[[nodiscard]] inline Qwen3MoEParameters tiny_moe() {
  auto parameters = tiny_decoder<Qwen3MoEParameters>();
  parameters.layer.num_experts = 4;
  parameters.layer.experts_top_k = 2;
  parameters.layer.router_auxiliary_loss_coefficient = 0.1;
  return parameters;
}

[[nodiscard]] inline ModulePtr<DecoderBackbone> make_backbone(const Qwen3DenseParameters& parameters,
                                                              const DecoderStageOptions& options = {}) {
  return make_module<Qwen3DenseModel>(parameters, options);
}
[[nodiscard]] inline ModulePtr<DecoderBackbone> make_backbone(const Qwen3MoEParameters& parameters,
                                                              const DecoderStageOptions& options = {}) {
  return make_module<Qwen3MoEModel>(parameters, options);
}

// Two sequences of six tokens of a tiny decoder's vocabulary, and what goes with them.
[[nodiscard]] inline at::Tensor tiny_ids() { return (at::arange(12) * 7 % 23).reshape({2, 6}); }
[[nodiscard]] inline at::Tensor tiny_labels() { return (at::arange(12) * 5 % 23).reshape({2, 6}); }
[[nodiscard]] inline SequenceShared tiny_sequence() {
  return {.position_ids = at::arange(6).unsqueeze(0).expand({2, 6}),
          .hidden_states_agg_mask = at::arange(12).remainder(5).ne(0).reshape({2, 6})};
}

}  // namespace d9d::test
