#include "d9d/models/qwen3_moe/huggingface.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/models/huggingface/decoder_config.h"

namespace d9d {
namespace {

using Mappings = std::vector<TensorMapping>;
using Tensors = std::span<const at::Tensor>;
using MlpMapping = Mappings (*)(const Qwen3MoELayerParameters& layer, const std::string& prefix);

constexpr const char* kQwen3MoEModelType = "qwen3_moe";
constexpr const char* kOurExperts = "grouped_experts.";

struct HuggingFaceMoEConfig {
  HuggingFaceDecoderConfig decoder = {};
  std::int64_t moe_intermediate_size = 1;
  std::optional<std::int64_t> num_experts = {};        // published checkpoints
  std::optional<std::int64_t> num_local_experts = {};  // transformers 5
  std::int64_t num_experts_per_tok = 1;
  bool norm_topk_prob = false;
  std::int64_t decoder_sparse_step = 1;
  std::optional<std::vector<std::int64_t>> mlp_only_layers = {};

  static constexpr auto fields() {
    using Config = HuggingFaceMoEConfig;
    return record<Config>(flattened(&Config::decoder),
                          required("moe_intermediate_size", &Config::moe_intermediate_size, at_least(1)),
                          defaulted("num_experts", &Config::num_experts, at_least(1)),
                          defaulted("num_local_experts", &Config::num_local_experts, at_least(1)),
                          required("num_experts_per_tok", &Config::num_experts_per_tok, at_least(1)),
                          defaulted("norm_topk_prob", &Config::norm_topk_prob),
                          defaulted("decoder_sparse_step", &Config::decoder_sparse_step),
                          defaulted("mlp_only_layers", &Config::mlp_only_layers));
  }
};

// One of an expert's three matrices: y = x W. W is [in, out] in this library and transposed in checkpoints.
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

Qwen3MoEParameters qwen3_moe_parameters_from_huggingface(const nlohmann::json& config) {
  check_model_type(config, kQwen3MoEModelType);
  const auto known = read_known_keys<HuggingFaceMoEConfig>(config);
  check_buildable(known.decoder);
  check_key(known.decoder_sparse_step == 1, "decoder_sparse_step", "1", cat(known.decoder_sparse_step));
  check_key(!known.mlp_only_layers || known.mlp_only_layers->empty(), "mlp_only_layers", "none", "some");
  check_key(known.num_experts || known.num_local_experts, "num_experts", "a number", "none");
  auto parameters = decoder_parameters<Qwen3MoEParameters>(known.decoder);
  parameters.layer.intermediate_size = known.moe_intermediate_size;
  parameters.layer.num_experts = known.num_experts ? *known.num_experts : *known.num_local_experts;
  parameters.layer.experts_top_k = known.num_experts_per_tok;
  parameters.layer.router_renormalize_probabilities = known.norm_topk_prob;
  parameters.layer.validate(huggingface_config_path());
  parameters.validate(huggingface_config_path());
  return parameters;
}

nlohmann::json qwen3_moe_huggingface_config(const Qwen3MoEParameters& parameters, const std::optional<HeadConfig>& head,
                                            Dtype dtype) {
  const Qwen3MoELayerParameters& layer = parameters.layer;
  HuggingFaceMoEConfig config = {.decoder = decoder_config(parameters, kQwen3MoEModelType),
                                 .moe_intermediate_size = layer.intermediate_size,
                                 .num_experts = layer.num_experts,
                                 .num_experts_per_tok = layer.experts_top_k,
                                 .norm_topk_prob = layer.router_renormalize_probabilities,
                                 .mlp_only_layers = std::vector<std::int64_t>{}};
  // The size of dense layers, of which there are none. Published checkpoints have this value.
  config.decoder.intermediate_size *= layer.experts_top_k;
  return finish_config(write_record(config), "Qwen3Moe", head, dtype);
}

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
  D9D_CHECK(parameters.layer.router_bias_update_rate == 0.0, ConfigError,
            "[models::qwen3_moe] expected router_bias_update_rate = 0 for a Hugging Face checkpoint, got ",
            parameters.layer.router_bias_update_rate,
            ": Qwen3-MoE has no router bias there. Balance with router_auxiliary_loss_coefficient.");
  const bool is_fused = experts_format == Qwen3MoEExpertsFormat::kFused;
  return decoder_to_huggingface(layout(parameters, head, names, is_fused ? to_fused : to_module_list));
}

}  // namespace d9d
