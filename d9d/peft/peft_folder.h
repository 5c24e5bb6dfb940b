// Adapters that Hugging Face peft, or peft_export(), has written: adapter_config.json and adapter_model.safetensors.
//
// Example
//   const PeftFolder folder("adapters");
//   folder.params_of("model.layers.0.self_attn.q_proj").r;
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "d9d/base/name_regex.h"
#include "d9d/model_state/mapped_sources.h"
#include "d9d/peft/config.h"

namespace d9d {

class PeftFolder {
 public:
  // Local. Reads the configuration, and the header of the weights. Throws IoError for a file that is missing or
  // damaged, ConfigError, naming the key, for what is not LoRA as this library has it.
  explicit PeftFolder(const std::filesystem::path& path);

  // But for the frozen weights that peft saves beside adapters of embedding and head.
  [[nodiscard]] const NamedTensors& tensors() const { return tensors_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  // r, alpha and use_rslora of the adapter of a published module, or of a parameter of experts, such as
  // "model.layers.0.mlp.experts.gate_up_proj".
  [[nodiscard]] LoraParams params_of(const std::string& module) const;
  // The model that the adapters belong to, a folder or a name of the hub; none: the folder does not say it.
  [[nodiscard]] const std::optional<std::string>& base() const { return base_; }
  [[nodiscard]] bool has_magnitudes() const { return has_magnitudes_; }  // DoRA
  // Whether adapters are of parameters with this last name.
  [[nodiscard]] bool targets_parameter(const std::string& leaf) const { return parameters_.contains(leaf); }

 private:
  std::string path_;
  NamedTensors tensors_;
  LoraParams params_;
  bool has_magnitudes_ = false;
  std::optional<std::string> base_;
  std::vector<std::pair<NameRegex, double>> ranks_, alphas_;  // by expressions of ends of names, in order
  std::set<std::string> parameters_;
};

}  // namespace d9d
