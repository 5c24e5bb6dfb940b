// The models that are compared with transformers: architectures x tasks. An architecture is a variant of a decoder
// family (tests/support/decoder_families.h); a task is an entry of tasks() and a class of the same name in
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

// One layer of each published model, with a small vocabulary and at most a few experts.
[[nodiscard]] const std::vector<Architecture>& published_layers();

// The inputs that transformers_oracle.py drew.
struct TaskInputs {
  at::Tensor input_ids;                    // [B, S]
  at::Tensor labels;                       // in the form that the task uses
  std::optional<at::Tensor> pooling_mask;  // [B, S]
};

// A backbone with the head of the task.
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
