// A custom decoder in the style of GPT-2, which uses no block of the library except Linear: learned positions,
// attention of LibTorch, norms of torch::nn, a head tied to the embedding. It can be split into pipeline stages and
// sharded.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/normalization.h>

#include "d9d/blocks/linear/linear.h"
#include "d9d/loop/task/model_stage.h"
#include "d9d/modules/adopt.h"

namespace d9d::test::own_decoder {

constexpr std::int64_t kWidth = 8, kNumHeads = 2, kNumLayers = 4, kVocabulary = 11, kLongest = 8;

inline auto norm() {
  return adopt([] { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})); });
}

struct Layer : Module {
  at::Tensor forward(const at::Tensor& x) const {  // [B, S, kWidth]
    const auto heads = qkv(norm1(x)).view({x.size(0), x.size(1), 3, kNumHeads, -1}).transpose(1, 3).unbind(2);
    const at::Tensor attended =
        at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, /*dropout_p=*/0.0, /*is_causal=*/true);
    const at::Tensor mixed = x + out(attended.transpose(1, 2).reshape(x.sizes()));
    return mixed + down(at::gelu(up(norm2(mixed))));
  }
  const ModulePtr<Adopted<torch::nn::LayerNormImpl>> norm1 = register_module("norm1", norm());
  const ModulePtr<Adopted<torch::nn::LayerNormImpl>> norm2 = register_module("norm2", norm());
  const ModulePtr<Linear> qkv = register_module<Linear>("qkv", LinearConfig{kWidth, 3 * kWidth, true});
  const ModulePtr<Linear> out = register_module<Linear>("out", LinearConfig{kWidth, kWidth, true});
  const ModulePtr<Linear> up = register_module<Linear>("up", LinearConfig{kWidth, 4 * kWidth, true});
  const ModulePtr<Linear> down = register_module<Linear>("down", LinearConfig{4 * kWidth, kWidth, true});
};

// A table of vectors, which the first stage looks up for ids and the last multiplies hidden states with.
struct Embedding : Module {
  at::Tensor forward(const at::Tensor& x) const {
    return x.is_floating_point() ? at::linear(x, weight->local()) : at::embedding(weight->local(), x);
  }
  const ParameterPtr weight = register_parameter("weight", {.shape = {kVocabulary, kWidth}, .init = init::normal(0.2)});
};

struct Ids {
  at::Tensor ids;  // [B, S] int64
  static constexpr auto fields() { return record<Ids>(field("ids", &Ids::ids)); }
};
struct Logits {
  at::Tensor logits;  // [B, S, kVocabulary]
  static constexpr auto fields() { return record<Logits>(field("logits", &Logits::logits)); }
};

struct Decoder : Module {
  using Hidden = at::Tensor;  // [B, S, kWidth], passed from stage to stage
  explicit Decoder(const PipelineStageInfo& of_stage) : stage(of_stage) {
    if (stage.is_first() || stage.is_last()) tokens = register_module<Embedding>("tokens");
    if (stage.is_first()) {
      positions = register_parameter("positions", {.shape = {kLongest, kWidth}, .init = init::normal(0.1)});
    }
    const LayerRange range = layers_of_stage({.num_layers = kNumLayers}, stage);
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      layers.push_back(register_module<Layer>("layer" + std::to_string(i)));
    }
    if (stage.is_last()) last_norm = register_module("last_norm", norm());
    to(at::kDouble);
  }
  std::variant<Hidden, Logits> forward(const Ids& input, const std::monostate& none) const {
    return forward(tokens(input.ids) + positions->local().narrow(0, 0, input.ids.size(1)), none);
  }
  std::variant<Hidden, Logits> forward(const Hidden& arrived, const std::monostate&) const {
    Hidden x = arrived;
    for (const auto& layer : layers) x = layer(x);
    if (!stage.is_last()) return x;
    return Logits{tokens(last_norm(x))};
  }
  Hidden stage_transfer(const Ids& input, StageBoundary) const {
    return at::empty({input.ids.size(0), input.ids.size(1), kWidth}, at::TensorOptions(at::kMeta).dtype(at::kDouble));
  }
  const PipelineStageInfo stage;
  ModulePtr<Embedding> tokens = nullptr;
  ParameterPtr positions = nullptr;
  std::vector<ModulePtr<Layer>> layers;
  ModulePtr<Adopted<torch::nn::LayerNormImpl>> last_norm = nullptr;
};

}  // namespace d9d::test::own_decoder
