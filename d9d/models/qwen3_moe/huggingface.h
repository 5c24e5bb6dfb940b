// Imports Qwen3 mixture-of-experts models from Hugging Face folders and exports them. See the example of
// qwen3_dense/huggingface.h; the functions here also handle the experts' two formats.
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
#include "d9d/models/qwen3_moe/config.h"

namespace d9d {

using Qwen3MoEExpertsFormat = ExpertsFormat;

// Like qwen3_dense_parameters_from_huggingface. Layers that decoder_sparse_step and mlp_only_layers leave without
// experts are dense_layers.
[[nodiscard]] Qwen3MoEParameters qwen3_moe_parameters_from_huggingface(const nlohmann::json& config);

[[nodiscard]] nlohmann::json qwen3_moe_huggingface_config(const Qwen3MoEParameters& parameters,
                                                          const std::optional<HeadConfig>& head, Dtype dtype);

// The format of the experts is recognised from `checkpoint_names` too.
[[nodiscard]] StateMapper qwen3_moe_from_huggingface(const Qwen3MoEParameters& parameters,
                                                     const std::optional<HeadConfig>& head,
                                                     const std::vector<std::string>& checkpoint_names,
                                                     const DecoderNames& names = {});

[[nodiscard]] StateMapper qwen3_moe_to_huggingface(
    const Qwen3MoEParameters& parameters, const std::optional<HeadConfig>& head,
    Qwen3MoEExpertsFormat experts_format = Qwen3MoEExpertsFormat::kModuleList, const DecoderNames& names = {});

extern const ModelFamily<Qwen3MoEParameters> kQwen3MoE;

}  // namespace d9d
