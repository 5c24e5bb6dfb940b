// What is compared with transformers: architectures x tasks. An architecture is a variant of a family of decoders
// (tests/support/decoder_families.h); a task is one entry of tasks() and a class of the same name in
// transformers_oracle.py.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/blocks/head/head_config.h"
#include "d9d/models/decoder/decoder_backbone.h"

#include "tests/support/decoder_families.h"

namespace d9d::test {

struct Architecture {
  std::string name;
  DecoderFamily family;
  nlohmann::json huggingface_config;  // of a tiny model
};
[[nodiscard]] const std::vector<Architecture>& architectures();

// Published models of one layer and a small vocabulary; of many experts a few.
[[nodiscard]] const std::vector<Architecture>& published_layers();

// What transformers_oracle.py drew.
struct TaskInputs {
  at::Tensor input_ids;                    // [B, S]
  at::Tensor labels;                       // as the task has them
  std::optional<at::Tensor> pooling_mask;  // [B, S]
};

// A backbone with the task's head.
struct TaskModel {
  std::shared_ptr<Module> module;
  std::function<at::Tensor(const TaskInputs& inputs)> output;
  std::function<at::Tensor(const TaskInputs& inputs)> loss;
};

struct Task {
  std::string name;
  HeadConfig head;
  std::function<TaskModel(const ModulePtr<DecoderBackbone>& backbone)> make_model;
};
[[nodiscard]] const std::vector<Task>& tasks();

}  // namespace d9d::test
