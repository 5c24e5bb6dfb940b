// Qwen3 dense models from and to the Hugging Face hub's folders.
//
// Example
//   const d9d::HuggingFaceDirectory directory("Qwen3-0.6B");
//   const auto mappings = d9d::qwen3_dense_from_huggingface(parameters, d9d::CausalLMHeadConfig{}, directory.names());
//   for (const auto& tensor : d9d::map_tensors(mappings, directory)) state.at(tensor.name).copy_(tensor.read());
//
//   const auto tensors = d9d::qwen3_dense_to_huggingface(parameters, d9d::CausalLMHeadConfig{});
//   d9d::write_huggingface_directory("export", config, d9d::map_tensors(tensors, state));
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "d9d/model_state/tensor_mapping.h"
#include "d9d/modules/blocks/head/head_config.h"
#include "d9d/modules/models/huggingface/decoder_mapping.h"
#include "d9d/modules/models/qwen3_dense/config.h"

namespace d9d {

// Null head: the backbone alone. `checkpoint_names`: the tensors of the checkpoint, by which its layout is recognised.
[[nodiscard]] std::vector<TensorMapping> qwen3_dense_from_huggingface(const Qwen3DenseParameters& parameters,
                                                                      const std::optional<HeadConfig>& head,
                                                                      const std::vector<std::string>& checkpoint_names,
                                                                      const DecoderNames& names = {});

[[nodiscard]] std::vector<TensorMapping> qwen3_dense_to_huggingface(const Qwen3DenseParameters& parameters,
                                                                    const std::optional<HeadConfig>& head,
                                                                    const DecoderNames& names = {});

}  // namespace d9d
