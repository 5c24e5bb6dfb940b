// Names of adapters in the format of Hugging Face peft: "base_model.model.<module>.lora_A.weight", where <module> is
// the module of transformers that has the weight. They follow from the mapper by which a model is exported.
//
// Example
//   const PublishedNames names(to_huggingface);
//   names.modules_of(linear);          // {"model.layers.0.self_attn.q_proj"}; of experts one for each expert
//   peft_name("lm_head", "lora_A");    // "base_model.model.lm_head.lora_A.weight"
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "d9d/model_state/mapper/state_mapper.h"
#include "d9d/peft/adapted_model.h"

namespace d9d {

[[nodiscard]] std::string peft_name(const std::string& module, const std::string& part);

class PublishedNames {
 public:
  // exported: from the model's tensors, without adapters, to those of Hugging Face.
  explicit PublishedNames(StateMapper exported);

  // The modules that have the linear's weight, [out, in] each: one, or one for each expert, in order. Throws
  // ConfigError if the published model has it in another form, such as all experts in one tensor.
  [[nodiscard]] std::vector<std::string> modules_of(const AdaptedLinear& linear) const;
  // The published name of a parameter. Throws ConfigError if it has another shape there, or is part of another tensor.
  [[nodiscard]] std::string name_of(const std::string& parameter, const std::vector<std::int64_t>& shape) const;
  // All modules of the published model that have tensors.
  [[nodiscard]] const std::set<std::string>& modules() const { return modules_; }

 private:
  // The outputs that are made of this parameter alone. Throws ConfigError if there are none.
  [[nodiscard]] MappedTensors made_of(const std::string& parameter, const std::vector<std::int64_t>& shape) const;

  StateMapper exported_;
  std::map<std::string, StateGroup> group_of_;  // by its only input
  std::set<std::string> modules_;
};

}  // namespace d9d
