#include "d9d/model_state/mapper/compose.h"
#include "d9d/models/huggingface/decoder_config.h"
#include "d9d/models/qwen2/model.h"

namespace d9d {
namespace {

Qwen2Parameters qwen2_parameters_from_huggingface(const nlohmann::json& config) {
  check_model_type(config, kQwen2.model_type);
  auto known =
      read_known_keys<HuggingFaceDecoderConfig>(with_defaults(config, {{"head_dim", default_head_dim(config)}}));
  known.attention_bias = false;  // transformers ignores the key: every model has the same biases
  check_buildable(known);
  return checked_parameters(decoder_parameters<Qwen2Parameters>(known));
}

// Without keys that published files lack.
nlohmann::json qwen2_huggingface_config(const Qwen2Parameters& parameters, const std::optional<HeadConfig>& head,
                                        Dtype dtype) {
  nlohmann::json config =
      finish_config(write_record(decoder_config(parameters, kQwen2.model_type)), "Qwen2", head, dtype);
  config.erase("attention_bias");
  if (config["head_dim"] == default_head_dim(config)) config.erase("head_dim");
  return config;
}

// Names are the same on both sides.
StateMapper map_qwen2_layer(std::int64_t /*index*/) {
  return mapper::identities({"input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.q_proj.bias",
                             "self_attn.k_proj.weight", "self_attn.k_proj.bias", "self_attn.v_proj.weight",
                             "self_attn.v_proj.bias", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
                             "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"});
}

DecoderStateLayout qwen2_layout(const Qwen2Parameters& parameters, const std::optional<HeadConfig>& head) {
  return {.sizes = decoder_sizes(parameters), .map_layer = map_qwen2_layer, .head = head, .names = {}};
}

}  // namespace

constinit const ModelFamily<Qwen2Parameters> kQwen2 = {
    .name = "qwen2",
    .model_type = "qwen2",
    .build = build_model<Qwen2Model, Qwen2Parameters>,
    .parameters_from_huggingface = qwen2_parameters_from_huggingface,
    .huggingface_config = qwen2_huggingface_config,
    .from_huggingface =
        [](const Qwen2Parameters& parameters, const std::optional<HeadConfig>& head,
           const std::vector<std::string>& names) {
          return decoder_from_huggingface(qwen2_layout(parameters, head), names);
        },
    .to_huggingface = [](const Qwen2Parameters& parameters, const std::optional<HeadConfig>& head,
                         ExpertsFormat) { return decoder_to_huggingface(qwen2_layout(parameters, head)); }};

}  // namespace d9d
