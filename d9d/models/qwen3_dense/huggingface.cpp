#include "d9d/models/qwen3_dense/huggingface.h"

#include "d9d/model_state/mapper/compose.h"
#include "d9d/models/huggingface/decoder_config.h"
#include "d9d/models/qwen3_dense/model.h"

namespace d9d {
namespace {

// Names are the same on both sides.
StateMapper map_qwen3_layer(std::int64_t /*index*/) {
  return mapper::identities({"input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight",
                             "self_attn.v_proj.weight", "self_attn.o_proj.weight", "self_attn.q_norm.weight",
                             "self_attn.k_norm.weight", "post_attention_layernorm.weight", "mlp.gate_proj.weight",
                             "mlp.up_proj.weight", "mlp.down_proj.weight"});
}

DecoderStateLayout layout(const Qwen3DenseParameters& parameters, const std::optional<HeadConfig>& head,
                          const DecoderNames& names) {
  return {.sizes = decoder_sizes(parameters), .map_layer = map_qwen3_layer, .head = head, .names = names};
}

}  // namespace

Qwen3DenseParameters qwen3_dense_parameters_from_huggingface(const nlohmann::json& config) {
  check_model_type(config, kQwen3Dense.model_type);
  const auto known = read_known_keys<HuggingFaceDecoderConfig>(config);
  check_buildable(known);
  return checked_parameters(decoder_parameters<Qwen3DenseParameters>(known));
}

nlohmann::json qwen3_dense_huggingface_config(const Qwen3DenseParameters& parameters,
                                              const std::optional<HeadConfig>& head, Dtype dtype) {
  return finish_config(write_record(decoder_config(parameters, kQwen3Dense.model_type)), "Qwen3", head, dtype);
}

StateMapper qwen3_dense_from_huggingface(const Qwen3DenseParameters& parameters, const std::optional<HeadConfig>& head,
                                         const std::vector<std::string>& checkpoint_names, const DecoderNames& names) {
  return decoder_from_huggingface(layout(parameters, head, names), checkpoint_names);
}

StateMapper qwen3_dense_to_huggingface(const Qwen3DenseParameters& parameters, const std::optional<HeadConfig>& head,
                                       const DecoderNames& names) {
  return decoder_to_huggingface(layout(parameters, head, names));
}

constinit const ModelFamily<Qwen3DenseParameters> kQwen3Dense = {
    .name = "qwen3_dense",
    .model_type = "qwen3",
    .build = build_model<Qwen3DenseModel, Qwen3DenseParameters>,
    .parameters_from_huggingface = qwen3_dense_parameters_from_huggingface,
    .huggingface_config = qwen3_dense_huggingface_config,
    .from_huggingface =
        [](const Qwen3DenseParameters& parameters, const std::optional<HeadConfig>& head,
           const std::vector<std::string>& checkpoint_names) {
          return qwen3_dense_from_huggingface(parameters, head, checkpoint_names);
        },
    .to_huggingface = [](const Qwen3DenseParameters& parameters, const std::optional<HeadConfig>& head,
                         ExpertsFormat) { return qwen3_dense_to_huggingface(parameters, head); }};

}  // namespace d9d
