// Imports Qwen3 dense models from Hugging Face folders and exports them.
//
// Example
//   const d9d::HuggingFaceDirectory directory("Qwen3-0.6B");
//   const auto parameters = d9d::qwen3_dense_parameters_from_huggingface(directory.read_config());
//   const auto mappings = d9d::qwen3_dense_from_huggingface(parameters, d9d::CausalLMHeadConfig{}, directory.names());
//   for (const auto& tensor : d9d::map_tensors(mappings, directory)) state.at(tensor.name).copy_(tensor.read());
//
//   const auto config = d9d::qwen3_dense_huggingface_config(parameters, head, d9d::Dtype::kBFloat16);
//   const auto tensors = d9d::map_tensors(d9d::qwen3_dense_to_huggingface(parameters, head), state);
//   d9d::write_huggingface_directory("export", config, tensors);
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "d9d/base/dtype.h"
#include "d9d/blocks/head/head_config.h"
#include "d9d/model_state/mapper/state_mapper.h"
#include "d9d/models/huggingface/decoder_mapping.h"
#include "d9d/models/model_family.h"
#include "d9d/models/qwen3_dense/config.h"

namespace d9d {

// The parameters in a config.json, with the vocabulary as one split "regular". Throws ConfigError that names the key
// for what this library does not support: attention biases or dropout, sliding windows, other activations, quantised
// weights, unknown rope types.
[[nodiscard]] Qwen3DenseParameters qwen3_dense_parameters_from_huggingface(const nlohmann::json& config);

// The config.json for transformers. Without a head, or with an embedding head, it describes the bare backbone.
[[nodiscard]] nlohmann::json qwen3_dense_huggingface_config(const Qwen3DenseParameters& parameters,
                                                            const std::optional<HeadConfig>& head, Dtype dtype);

// head: null for the backbone alone. `checkpoint_names`: the tensors of the checkpoint, from which its layout is
// recognised.
[[nodiscard]] StateMapper qwen3_dense_from_huggingface(const Qwen3DenseParameters& parameters,
                                                       const std::optional<HeadConfig>& head,
                                                       const std::vector<std::string>& checkpoint_names,
                                                       const DecoderNames& names = {});

[[nodiscard]] StateMapper qwen3_dense_to_huggingface(const Qwen3DenseParameters& parameters,
                                                     const std::optional<HeadConfig>& head,
                                                     const DecoderNames& names = {});

extern const ModelFamily<Qwen3DenseParameters> kQwen3Dense;

}  // namespace d9d
