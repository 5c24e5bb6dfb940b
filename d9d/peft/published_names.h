// Names of adapters in the format of Hugging Face peft: "base_model.model.<module>.lora_A.weight", where <module> is
// the module of transformers that has the weight. They follow from the mapper by which a model is exported.
//
// Example
//   const PublishedNames names(to_huggingface);
//   names.modules_of(adapted);          // {"model.layers.0.self_attn.q_proj"}; of experts one for each expert
//   peft_name("lm_head", "lora_A");     // "base_model.model.lm_head.lora_A.weight"
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "d9d/model_state/mapper/state_mapper.h"
#include "d9d/peft/adapted_model.h"

namespace d9d {

// part: lora_A or lora_B.
[[nodiscard]] std::string peft_name(const std::string& module, const std::string& part);
// The same of an adapter with this product. Those of embeddings have other names, and A [r, rows].
[[nodiscard]] std::string peft_name(const std::string& module, const std::string& part, LowRankProduct product);
// The name of the magnitudes of DoRA.
[[nodiscard]] std::string peft_magnitude_name(const std::string& module);

class PublishedNames {
 public:
  // exported: from the model's tensors, without adapters, to those of Hugging Face.
  explicit PublishedNames(StateMapper exported);

  // The modules that have the adapted weight, [out, in] each, of an embedding [rows, H]: one, in which splits of a
  // vocabulary are joined, or one for each expert, in order. Throws ConfigError if the published model has it in
  // another form, such as all experts in one tensor.
  [[nodiscard]] std::vector<std::string> modules_of(const AdaptedModule& adapted) const;
  // The published name of a parameter. Throws ConfigError if it has another shape there, or is part of another tensor.
  [[nodiscard]] std::string name_of(const std::string& parameter, const std::vector<std::int64_t>& shape) const;
  // All modules of the published model that have tensors.
  [[nodiscard]] const std::set<std::string>& modules() const { return modules_; }

 private:
  using Shapes = std::map<std::string, std::vector<std::int64_t>>;  // of parameters, by name
  // The outputs that are made of these parameters alone. Throws ConfigError if there are none.
  [[nodiscard]] MappedTensors made_of(const Shapes& parameters) const;
  // The name of the output in which these parameters are joined, one below the other.
  [[nodiscard]] std::string name_of(const std::vector<AdaptedWeight>& weights) const;

  StateMapper exported_;
  std::set<std::set<std::string>> inputs_;  // of each group
  std::set<std::string> modules_;
};

}  // namespace d9d
