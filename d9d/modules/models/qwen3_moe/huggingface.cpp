#include "d9d/modules/models/qwen3_moe/huggingface.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

using Mappings = std::vector<TensorMapping>;
using Tensors = std::span<const at::Tensor>;
using MlpMapping = Mappings (*)(const Qwen3MoELayerParameters& layer, const std::string& prefix);

constexpr const char* kOurExperts = "grouped_experts.";

// One of an expert's three matrices: y = x W with W [in, out] here, transposed there.
struct ExpertMatrix {
  std::string name;
  std::int64_t in;
  std::int64_t out;
};

std::vector<ExpertMatrix> expert_matrices(const Qwen3MoELayerParameters& layer) {
  return {{"gate_proj", layer.hidden_size, layer.intermediate_size},
          {"up_proj", layer.hidden_size, layer.intermediate_size},
          {"down_proj", layer.intermediate_size, layer.hidden_size}};
}

NamedShape ours(const Qwen3MoELayerParameters& layer, const std::string& prefix, const ExpertMatrix& matrix) {
  return {prefix + kOurExperts + matrix.name + ".weight", {layer.num_experts, matrix.in, matrix.out}};
}

NamedShape in_module_list(const std::string& prefix, std::int64_t expert, const ExpertMatrix& matrix) {
  return {cat(prefix, "experts.", expert, ".", matrix.name, ".weight"), {matrix.out, matrix.in}};
}

at::Tensor transposed(const at::Tensor& experts) { return experts.transpose(1, 2); }

Mappings router_mapping(const Qwen3MoELayerParameters& layer, const std::string& from, const std::string& to) {
  return {rename_tensor(from, to, {layer.num_experts, layer.hidden_size})};
}

Mappings from_module_list(const Qwen3MoELayerParameters& layer, const std::string& prefix) {
  Mappings mappings = router_mapping(layer, prefix + "gate.weight", prefix + "router.gate.weight");
  for (const ExpertMatrix& matrix : expert_matrices(layer)) {
    TensorMapping mapping = {
        .inputs = {}, .output = ours(layer, prefix, matrix), .apply = [](Tensors experts) {
          const auto num_experts = static_cast<std::int64_t>(experts.size());
          at::Tensor stacked = at::empty({num_experts, experts[0].size(1), experts[0].size(0)}, experts[0].options());
          for (std::int64_t expert = 0; expert < num_experts; ++expert) {
            stacked[expert].copy_(experts[static_cast<std::size_t>(expert)].t());
          }
          return stacked;
        }};
    for (std::int64_t expert = 0; expert < layer.num_experts; ++expert) {
      mapping.inputs.push_back(in_module_list(prefix, expert, matrix));
    }
    mappings.push_back(std::move(mapping));
  }
  return mappings;
}

Mappings to_module_list(const Qwen3MoELayerParameters& layer, const std::string& prefix) {
  Mappings mappings = router_mapping(layer, prefix + "router.gate.weight", prefix + "gate.weight");
  for (std::int64_t expert = 0; expert < layer.num_experts; ++expert) {
    for (const ExpertMatrix& matrix : expert_matrices(layer)) {
      mappings.push_back({.inputs = {ours(layer, prefix, matrix)},
                          .output = in_module_list(prefix, expert, matrix),
                          .apply = [expert](Tensors inputs) { return inputs[0][expert].t(); }});
    }
  }
  return mappings;
}

NamedShape fused_gate_up(const Qwen3MoELayerParameters& layer, const std::string& prefix) {
  return {prefix + "experts.gate_up_proj", {layer.num_experts, 2 * layer.intermediate_size, layer.hidden_size}};
}

NamedShape fused_down(const Qwen3MoELayerParameters& layer, const std::string& prefix) {
  return {prefix + "experts.down_proj", {layer.num_experts, layer.hidden_size, layer.intermediate_size}};
}

Mappings from_fused(const Qwen3MoELayerParameters& layer, const std::string& prefix) {
  const std::vector<ExpertMatrix> matrices = expert_matrices(layer);
  Mappings mappings = router_mapping(layer, prefix + "gate.weight", prefix + "router.gate.weight");
  const auto half = [&](const ExpertMatrix& matrix, std::int64_t begin) -> TensorMapping {
    return {
        .inputs = {fused_gate_up(layer, prefix)},
        .output = ours(layer, prefix, matrix),
        .apply = [begin, rows = matrix.out](Tensors inputs) { return transposed(inputs[0].narrow(1, begin, rows)); }};
  };
  mappings.push_back(half(matrices[0], 0));
  mappings.push_back(half(matrices[1], layer.intermediate_size));
  mappings.push_back({.inputs = {fused_down(layer, prefix)},
                      .output = ours(layer, prefix, matrices[2]),
                      .apply = [](Tensors inputs) { return transposed(inputs[0]); }});
  return mappings;
}

Mappings to_fused(const Qwen3MoELayerParameters& layer, const std::string& prefix) {
  const std::vector<ExpertMatrix> matrices = expert_matrices(layer);
  Mappings mappings = router_mapping(layer, prefix + "router.gate.weight", prefix + "gate.weight");
  mappings.push_back({.inputs = {ours(layer, prefix, matrices[0]), ours(layer, prefix, matrices[1])},
                      .output = fused_gate_up(layer, prefix),
                      .apply = [](Tensors inputs) {
                        return at::cat({transposed(inputs[0]), transposed(inputs[1])}, 1);
                      }});
  mappings.push_back({.inputs = {ours(layer, prefix, matrices[2])},
                      .output = fused_down(layer, prefix),
                      .apply = [](Tensors inputs) { return transposed(inputs[0]); }});
  return mappings;
}

DecoderStateLayout layout(const Qwen3MoEParameters& parameters, const std::optional<HeadConfig>& head,
                          const DecoderNames& names, MlpMapping map_mlp) {
  return {.sizes = decoder_sizes(parameters),
          .map_mlp = [layer = parameters.layer, map_mlp](const std::string& prefix) { return map_mlp(layer, prefix); },
          .head = head,
          .names = names};
}

}  // namespace

std::vector<TensorMapping> qwen3_moe_from_huggingface(const Qwen3MoEParameters& parameters,
                                                      const std::optional<HeadConfig>& head,
                                                      const std::vector<std::string>& checkpoint_names,
                                                      const DecoderNames& names) {
  const bool is_fused = std::ranges::any_of(
      checkpoint_names, [](const std::string& name) { return name.ends_with(".mlp.experts.gate_up_proj"); });
  return decoder_from_huggingface(layout(parameters, head, names, is_fused ? from_fused : from_module_list),
                                  checkpoint_names);
}

std::vector<TensorMapping> qwen3_moe_to_huggingface(const Qwen3MoEParameters& parameters,
                                                    const std::optional<HeadConfig>& head,
                                                    Qwen3MoEExpertsFormat experts_format, const DecoderNames& names) {
  const bool is_fused = experts_format == Qwen3MoEExpertsFormat::kFused;
  return decoder_to_huggingface(layout(parameters, head, names, is_fused ? to_fused : to_module_list));
}

}  // namespace d9d
