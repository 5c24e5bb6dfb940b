#include "d9d/modules/models/qwen3_dense/huggingface.h"

namespace d9d {
namespace {

DecoderStateLayout layout(const Qwen3DenseParameters& parameters, const std::optional<HeadConfig>& head,
                          const DecoderNames& names) {
  const std::int64_t hidden = parameters.layer.hidden_size, intermediate = parameters.layer.intermediate_size;
  const auto map_mlp = [hidden, intermediate](const std::string& prefix) -> std::vector<TensorMapping> {
    const auto same = [&](const std::string& name, std::vector<std::int64_t> shape) {
      return rename_tensor(prefix + name, prefix + name, std::move(shape));
    };
    return {same("gate_proj.weight", {intermediate, hidden}), same("up_proj.weight", {intermediate, hidden}),
            same("down_proj.weight", {hidden, intermediate})};
  };
  return {.sizes = decoder_sizes(parameters), .map_mlp = map_mlp, .head = head, .names = names};
}

}  // namespace

std::vector<TensorMapping> qwen3_dense_from_huggingface(const Qwen3DenseParameters& parameters,
                                                        const std::optional<HeadConfig>& head,
                                                        const std::vector<std::string>& checkpoint_names,
                                                        const DecoderNames& names) {
  return decoder_from_huggingface(layout(parameters, head, names), checkpoint_names);
}

std::vector<TensorMapping> qwen3_dense_to_huggingface(const Qwen3DenseParameters& parameters,
                                                      const std::optional<HeadConfig>& head,
                                                      const DecoderNames& names) {
  return decoder_to_huggingface(layout(parameters, head, names));
}

}  // namespace d9d
