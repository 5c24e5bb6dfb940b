// Qwen3 mixture-of-experts models as one type, for code that is written once for every family.
//
// Example
//   return examples::run_pretraining<d9d::Qwen3MoE>(argc, argv);   // examples/common/pretrain.h
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/models/qwen3_moe/config.h"
#include "d9d/models/qwen3_moe/huggingface.h"
#include "d9d/models/qwen3_moe/model.h"

namespace d9d {

struct Qwen3MoE {
  using Parameters = Qwen3MoEParameters;
  using Model = Qwen3MoEModel;

  static Parameters parameters_from_huggingface(const nlohmann::json& config) {
    return qwen3_moe_parameters_from_huggingface(config);
  }
  static nlohmann::json huggingface_config(const Parameters& parameters, const std::optional<HeadConfig>& head,
                                           Dtype dtype) {
    return qwen3_moe_huggingface_config(parameters, head, dtype);
  }
  static StateMapper from_huggingface(const Parameters& parameters, const std::optional<HeadConfig>& head,
                                      const std::vector<std::string>& checkpoint_names) {
    return qwen3_moe_from_huggingface(parameters, head, checkpoint_names);
  }
  static StateMapper to_huggingface(const Parameters& parameters, const std::optional<HeadConfig>& head) {
    return qwen3_moe_to_huggingface(parameters, head);
  }
};

}  // namespace d9d
