#include "d9d/models/qwen3_moe/huggingface.h"

#include <algorithm>

#include "d9d/base/check.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"
#include "d9d/models/huggingface/decoder_config.h"
#include "d9d/models/qwen3_moe/model.h"

namespace d9d {
namespace {

using MlpMapper = StateMapper (*)(const Qwen3MoELayerParameters& layer, const std::string& prefix);

constexpr const char* kMlp = "mlp.";  // prefix of the experts and the router in a layer, the same on both sides

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
                          defaulted("decoder_sparse_step", &Config::decoder_sparse_step, at_least(1)),
                          defaulted("mlp_only_layers", &Config::mlp_only_layers));
  }
};

// The three matrices of an expert: y = x W. W is [in, out] in this library and transposed in checkpoints.
constexpr const char* kMatrices[] = {"gate_proj", "up_proj", "down_proj"};

std::string ours(const std::string& prefix, const std::string& matrix) {
  return prefix + "grouped_experts." + matrix + ".weight";
}

std::vector<std::string> in_module_list(const Qwen3MoELayerParameters& layer, const std::string& prefix,
                                        const std::string& matrix) {
  std::vector<std::string> names;
  for (std::int64_t expert = 0; expert < layer.num_experts; ++expert) {
    names.push_back(cat(prefix, "experts.", expert, ".", matrix, ".weight"));
  }
  return names;
}

std::string fused(const std::string& prefix, const std::string& matrix) { return prefix + "experts." + matrix; }

StateMapper transpose_experts(const std::string& name) { return mapper::transpose(name, 1, 2); }

StateMapper from_module_list(const Qwen3MoELayerParameters& layer, const std::string& prefix) {
  std::vector<StateMapper> mappers = {mapper::rename(prefix + "gate.weight", prefix + "router.gate.weight")};
  for (const char* const matrix : kMatrices) {
    const std::string experts = ours(prefix, matrix);
    mappers.push_back(mapper::sequential(
        {mapper::stack(in_module_list(layer, prefix, matrix), experts, 0), transpose_experts(experts)}));
  }
  return mapper::parallel(std::move(mappers));
}

StateMapper to_module_list(const Qwen3MoELayerParameters& layer, const std::string& prefix) {
  std::vector<StateMapper> mappers = {mapper::rename(prefix + "router.gate.weight", prefix + "gate.weight")};
  for (const char* const matrix : kMatrices) {
    const std::string experts = ours(prefix, matrix);
    mappers.push_back(mapper::sequential(
        {transpose_experts(experts), mapper::unstack(experts, in_module_list(layer, prefix, matrix), 0)}));
  }
  return mapper::parallel(std::move(mappers));
}

StateMapper from_fused(const Qwen3MoELayerParameters&, const std::string& prefix) {
  const std::string gate = ours(prefix, "gate_proj"), up = ours(prefix, "up_proj"), down = ours(prefix, "down_proj");
  const StateMapper cut = mapper::parallel({mapper::rename(prefix + "gate.weight", prefix + "router.gate.weight"),
                                            mapper::chunk(fused(prefix, "gate_up_proj"), {gate, up}, 1),
                                            mapper::rename(fused(prefix, "down_proj"), down)});
  return mapper::sequential(
      {cut, mapper::parallel({transpose_experts(gate), transpose_experts(up), transpose_experts(down)})});
}

StateMapper to_fused(const Qwen3MoELayerParameters&, const std::string& prefix) {
  const std::string gate = ours(prefix, "gate_proj"), up = ours(prefix, "up_proj"), down = ours(prefix, "down_proj");
  const StateMapper join = mapper::parallel({mapper::rename(prefix + "router.gate.weight", prefix + "gate.weight"),
                                             mapper::concatenate({gate, up}, fused(prefix, "gate_up_proj"), 1),
                                             mapper::rename(down, fused(prefix, "down_proj"))});
  return mapper::sequential(
      {mapper::parallel({transpose_experts(gate), transpose_experts(up), transpose_experts(down)}), join});
}

DecoderStateLayout layout(const Qwen3MoEParameters& parameters, const std::optional<HeadConfig>& head,
                          const DecoderNames& names, MlpMapper map_mlp) {
  const auto map_layer = [layers = qwen3_moe_layers(parameters), map_mlp](std::int64_t index) {
    const auto* const experts = std::get_if<Qwen3MoELayerParameters>(&layers.at(static_cast<std::size_t>(index)));
    return mapper::parallel(
        {mapper::identities({"input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight",
                             "self_attn.v_proj.weight", "self_attn.o_proj.weight", "self_attn.q_norm.weight",
                             "self_attn.k_norm.weight", "post_attention_layernorm.weight"}),
         experts != nullptr
             ? map_mlp(*experts, kMlp)
             : mapper::identities({"mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"})});
  };
  return {.sizes = decoder_sizes(parameters), .map_layer = map_layer, .head = head, .names = names};
}

// transformers ignores indices beyond the last layer.
std::optional<Qwen3MoEDenseLayers> dense_layers(const HuggingFaceMoEConfig& config) {
  const auto named = config.mlp_only_layers.value_or(std::vector<std::int64_t>{});
  Qwen3MoEDenseLayers layers = {.intermediate_size = config.decoder.intermediate_size};
  for (std::int64_t i = 0; i < config.decoder.num_hidden_layers; ++i) {
    const bool is_dense = std::ranges::find(named, i) != named.end() || (i + 1) % config.decoder_sparse_step != 0;
    if (is_dense) layers.indices.push_back(i);
  }
  if (layers.indices.empty()) return std::nullopt;
  return layers;
}

}  // namespace

Qwen3MoEParameters qwen3_moe_parameters_from_huggingface(const nlohmann::json& config) {
  check_model_type(config, kQwen3MoE.model_type);
  const auto known = read_known_keys<HuggingFaceMoEConfig>(config);
  check_buildable(known.decoder);
  check_key(known.num_experts || known.num_local_experts, "num_experts", "a number", "none");
  auto parameters = decoder_parameters<Qwen3MoEParameters>(known.decoder);
  parameters.layer.intermediate_size = known.moe_intermediate_size;
  parameters.layer.num_experts = known.num_experts ? *known.num_experts : *known.num_local_experts;
  parameters.layer.experts_top_k = known.num_experts_per_tok;
  parameters.layer.router_renormalize_probabilities = known.norm_topk_prob;
  parameters.layer.dense_layers = dense_layers(known);
  return checked_parameters(std::move(parameters));
}

nlohmann::json qwen3_moe_huggingface_config(const Qwen3MoEParameters& parameters, const std::optional<HeadConfig>& head,
                                            Dtype dtype) {
  const Qwen3MoELayerParameters& layer = parameters.layer;
  HuggingFaceMoEConfig config = {.decoder = decoder_config(parameters, kQwen3MoE.model_type),
                                 .moe_intermediate_size = layer.intermediate_size,
                                 .num_experts = layer.num_experts,
                                 .num_experts_per_tok = layer.experts_top_k,
                                 .norm_topk_prob = layer.router_renormalize_probabilities,
                                 .mlp_only_layers = std::vector<std::int64_t>{}};
  if (layer.dense_layers) {
    config.mlp_only_layers = layer.dense_layers->indices;
    config.decoder.intermediate_size = layer.dense_layers->intermediate_size;
  } else {
    config.decoder.intermediate_size *= layer.experts_top_k;  // as in published checkpoints; no layer has this size
  }
  return finish_config(write_record(config), "Qwen3Moe", head, dtype);
}

StateMapper qwen3_moe_from_huggingface(const Qwen3MoEParameters& parameters, const std::optional<HeadConfig>& head,
                                       const std::vector<std::string>& checkpoint_names, const DecoderNames& names) {
  const bool is_fused = std::ranges::any_of(
      checkpoint_names, [](const std::string& name) { return name.ends_with(".mlp.experts.gate_up_proj"); });
  return decoder_from_huggingface(layout(parameters, head, names, is_fused ? from_fused : from_module_list),
                                  checkpoint_names);
}

StateMapper qwen3_moe_to_huggingface(const Qwen3MoEParameters& parameters, const std::optional<HeadConfig>& head,
                                     Qwen3MoEExpertsFormat experts_format, const DecoderNames& names) {
  D9D_CHECK(parameters.layer.router_bias_update_rate == 0.0, ConfigError,
            "[models::qwen3_moe] expected router_bias_update_rate = 0 for a Hugging Face checkpoint, got ",
            parameters.layer.router_bias_update_rate,
            ": Qwen3-MoE has no router bias there. Balance with router_auxiliary_loss_coefficient.");
  const bool is_fused = experts_format == Qwen3MoEExpertsFormat::kFused;
  return decoder_to_huggingface(layout(parameters, head, names, is_fused ? to_fused : to_module_list));
}

constinit const ModelFamily<Qwen3MoEParameters> kQwen3MoE = {
    .name = "qwen3_moe",
    .model_type = "qwen3_moe",
    .has_experts = true,
    .build = build_model<Qwen3MoEModel, Qwen3MoEParameters>,
    .parameters_from_huggingface = qwen3_moe_parameters_from_huggingface,
    .huggingface_config = qwen3_moe_huggingface_config,
    .from_huggingface =
        [](const Qwen3MoEParameters& parameters, const std::optional<HeadConfig>& head,
           const std::vector<std::string>& checkpoint_names) {
          return qwen3_moe_from_huggingface(parameters, head, checkpoint_names);
        },
    .to_huggingface = [](const Qwen3MoEParameters& parameters, const std::optional<HeadConfig>& head,
                         ExpertsFormat experts) { return qwen3_moe_to_huggingface(parameters, head, experts); }};

}  // namespace d9d
