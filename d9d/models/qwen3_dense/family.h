// Qwen3 dense models as one type, for code that is written once for every family.
//
// Example
//   return examples::run_pretraining<d9d::Qwen3Dense>(argc, argv);   // examples/common/pretrain.h
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/models/qwen3_dense/config.h"
#include "d9d/models/qwen3_dense/huggingface.h"
#include "d9d/models/qwen3_dense/model.h"

namespace d9d {

struct Qwen3Dense {
  using Parameters = Qwen3DenseParameters;
  using Model = Qwen3DenseModel;

  static Parameters parameters_from_huggingface(const nlohmann::json& config) {
    return qwen3_dense_parameters_from_huggingface(config);
  }
  static nlohmann::json huggingface_config(const Parameters& parameters, const std::optional<HeadConfig>& head,
                                           Dtype dtype) {
    return qwen3_dense_huggingface_config(parameters, head, dtype);
  }
  static StateMapper from_huggingface(const Parameters& parameters, const std::optional<HeadConfig>& head,
                                      const std::vector<std::string>& checkpoint_names) {
    return qwen3_dense_from_huggingface(parameters, head, checkpoint_names);
  }
  static StateMapper to_huggingface(const Parameters& parameters, const std::optional<HeadConfig>& head) {
    return qwen3_dense_to_huggingface(parameters, head);
  }
};

}  // namespace d9d
