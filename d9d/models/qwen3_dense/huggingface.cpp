#include "d9d/models/qwen3_dense/huggingface.h"

#include "d9d/model_state/mapper/compose.h"
#include "d9d/models/huggingface/decoder_config.h"

namespace d9d {
namespace {

constexpr const char* kQwen3ModelType = "qwen3";

DecoderStateLayout layout(const Qwen3DenseParameters& parameters, const std::optional<HeadConfig>& head,
                          const DecoderNames& names) {
  const auto map_mlp = [](const std::string& prefix) {
    return mapper::identities({prefix + "gate_proj.weight", prefix + "up_proj.weight", prefix + "down_proj.weight"});
  };
  return {.sizes = decoder_sizes(parameters), .map_mlp = map_mlp, .head = head, .names = names};
}

}  // namespace

Qwen3DenseParameters qwen3_dense_parameters_from_huggingface(const nlohmann::json& config) {
  check_model_type(config, kQwen3ModelType);
  const auto known = read_known_keys<HuggingFaceDecoderConfig>(config);
  check_buildable(known);
  auto parameters = decoder_parameters<Qwen3DenseParameters>(known);
  parameters.layer.validate(huggingface_config_path());
  parameters.validate(huggingface_config_path());
  return parameters;
}

nlohmann::json qwen3_dense_huggingface_config(const Qwen3DenseParameters& parameters,
                                              const std::optional<HeadConfig>& head, Dtype dtype) {
  return finish_config(write_record(decoder_config(parameters, kQwen3ModelType)), "Qwen3", head, dtype);
}

StateMapper qwen3_dense_from_huggingface(const Qwen3DenseParameters& parameters, const std::optional<HeadConfig>& head,
                                         const std::vector<std::string>& checkpoint_names, const DecoderNames& names) {
  return decoder_from_huggingface(layout(parameters, head, names), checkpoint_names);
}

StateMapper qwen3_dense_to_huggingface(const Qwen3DenseParameters& parameters, const std::optional<HeadConfig>& head,
                                       const DecoderNames& names) {
  return decoder_to_huggingface(layout(parameters, head, names));
}

}  // namespace d9d
