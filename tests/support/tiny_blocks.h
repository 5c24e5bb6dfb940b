// Reproducible data, and models that are small enough for many runs.
#pragma once

#include <ATen/ATen.h>

#include "d9d/core/rng/element_random.h"
#include "d9d/models/qwen3_dense/model.h"
#include "d9d/models/qwen3_moe/model.h"
#include "d9d/modules/module.h"

#include "tests/support/decoder_families.h"

namespace d9d::test {

// Standard normal numbers, determined by shape and key.
[[nodiscard]] inline at::Tensor normal(at::IntArrayRef shape, std::uint64_t key, at::ScalarType dtype = at::kDouble) {
  const at::Tensor tensor = at::empty(shape, dtype);
  fill_normal(tensor, whole_window(tensor), {.key = key}, 0.0, 1.0);
  return tensor;
}

[[nodiscard]] inline at::Tensor normal_leaf(at::IntArrayRef shape, std::uint64_t key,
                                            at::ScalarType dtype = at::kDouble) {
  return normal(shape, key, dtype).set_requires_grad(true);
}

// Allocates storage and sets values, which are determined by the names.
template <class T>
ModulePtr<T> initialized(const ModulePtr<T>& module, at::ScalarType dtype = at::kDouble, std::uint64_t base_seed = 1) {
  module->to(dtype);
  module->materialize(at::kCPU);
  module->reset_parameters(base_seed);
  return module;
}

[[nodiscard]] inline Qwen3DenseParameters tiny_dense() { return small_parameters<Qwen3DenseParameters>({}); }

// A tiny mixture of experts with an auxiliary loss.
[[nodiscard]] inline Qwen3MoEParameters tiny_moe() {
  return small_parameters<Qwen3MoEParameters>({.auxiliary_loss_coefficient = 0.1});
}

[[nodiscard]] inline ModulePtr<DecoderBackbone> make_backbone(const Qwen3DenseParameters& parameters,
                                                              const DecoderStageOptions& options = {}) {
  return make_module<Qwen3DenseModel>(parameters, options);
}
[[nodiscard]] inline ModulePtr<DecoderBackbone> make_backbone(const Qwen3MoEParameters& parameters,
                                                              const DecoderStageOptions& options = {}) {
  return make_module<Qwen3MoEModel>(parameters, options);
}

// A backbone of any family; with an auxiliary loss if the family has experts.
[[nodiscard]] inline ModulePtr<DecoderBackbone> make_backbone(const DecoderFamily& family,
                                                              const DecoderStageOptions& options = {},
                                                              SmallDecoder sizes = {}) {
  sizes.auxiliary_loss_coefficient = 0.1;
  return family.make_small(sizes, options);
}

// Two sequences of six tokens in the vocabulary of a tiny decoder, and the other inputs of that batch.
[[nodiscard]] inline at::Tensor tiny_ids() { return (at::arange(12) * 7 % 23).reshape({2, 6}); }
[[nodiscard]] inline at::Tensor tiny_labels() { return (at::arange(12) * 5 % 23).reshape({2, 6}); }
[[nodiscard]] inline SequenceShared tiny_sequence() {
  return {.position_ids = at::arange(6).unsqueeze(0).expand({2, 6}),
          .hidden_states_agg_mask = at::arange(12).remainder(5).ne(0).reshape({2, 6})};
}

}  // namespace d9d::test
