#include "d9d/base/check.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/models/huggingface/decoder_config.h"
#include "d9d/models/llama3/model.h"

namespace d9d {
namespace {

struct HuggingFaceLlamaConfig {
  HuggingFaceDecoderConfig decoder = {};
  bool mlp_bias = false;

  static constexpr auto fields() {
    using Config = HuggingFaceLlamaConfig;
    return record<Config>(flattened(&Config::decoder), defaulted("mlp_bias", &Config::mlp_bias));
  }
};

Llama3Parameters llama3_parameters_from_huggingface(const nlohmann::json& config) {
  check_model_type(config, kLlama3.model_type);
  const auto known = read_known_keys<HuggingFaceLlamaConfig>(
      with_defaults(config, {{"head_dim", default_head_dim(config)},
                             {"num_key_value_heads", config.value("num_attention_heads", nlohmann::json())},
                             {"rms_norm_eps", 1e-6}}));
  check_buildable(known.decoder);
  check_key(!known.mlp_bias, "mlp_bias", "false", "true");
  return checked_parameters(decoder_parameters<Llama3Parameters>(known.decoder));
}

nlohmann::json llama3_huggingface_config(const Llama3Parameters& parameters, const std::optional<HeadConfig>& head,
                                         Dtype dtype) {
  const auto& layer = parameters.layer;
  D9D_CHECK(layer.hidden_size % layer.num_attention_heads == 0, ConfigError,
            "[models::llama3] expected hidden_size to be a multiple of num_attention_heads, as transformers asks of a "
            "Llama, got ",
            layer.hidden_size, " and ", layer.num_attention_heads, ". Choose other sizes.");
  const HuggingFaceLlamaConfig config = {.decoder = decoder_config(parameters, kLlama3.model_type)};
  return finish_config(write_record(config), "Llama", head, dtype);
}

// Names are the same on both sides.
StateMapper map_llama3_layer(std::int64_t /*index*/) {
  return mapper::identities({"input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight",
                             "self_attn.v_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
                             "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"});
}

DecoderStateLayout llama3_layout(const Llama3Parameters& parameters, const std::optional<HeadConfig>& head) {
  return {.sizes = decoder_sizes(parameters), .map_layer = map_llama3_layer, .head = head, .names = {}};
}

}  // namespace

constinit const ModelFamily<Llama3Parameters> kLlama3 = {
    .name = "llama3",
    .model_type = "llama",
    .build = build_model<Llama3Model, Llama3Parameters>,
    .parameters_from_huggingface = llama3_parameters_from_huggingface,
    .huggingface_config = llama3_huggingface_config,
    .from_huggingface =
        [](const Llama3Parameters& parameters, const std::optional<HeadConfig>& head,
           const std::vector<std::string>& names) {
          return decoder_from_huggingface(llama3_layout(parameters, head), names);
        },
    .to_huggingface = [](const Llama3Parameters& parameters, const std::optional<HeadConfig>& head,
                         ExpertsFormat) { return decoder_to_huggingface(llama3_layout(parameters, head)); }};

}  // namespace d9d
