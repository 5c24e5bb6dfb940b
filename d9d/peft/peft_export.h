// Exports adapters alone, in the format of Hugging Face peft: adapter_config.json and adapter_model.safetensors.
//
// Example
//   const PeftExport adapters = peft_export(adapted, to_huggingface, "Qwen3-0.6B");
//   write_model_state("adapters", adapters.mapper, state_of(*model), ranks,
//                     {.files = {{"adapter_config.json", adapters.config.dump(2)}}, .only_file = kPeftWeights});
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/model_state/mapper/state_mapper.h"
#include "d9d/peft/adapted_model.h"

namespace d9d {

inline constexpr const char* kPeftConfig = "adapter_config.json";
inline constexpr const char* kPeftWeights = "adapter_model.safetensors";

// Whether the format, as this library writes and reads it, has the parameter as part of modules_to_save.
[[nodiscard]] bool can_be_saved_whole(const TunedParameter& parameter);

struct PeftExport {
  StateMapper mapper;                   // from the adapters, and what is trained beside them, to the tensors of peft
  std::vector<StateMapper> magnitudes;  // the same of DoRA's magnitudes, which peft keeps in float32 at least
  nlohmann::json config;                // adapter_config.json
  std::vector<std::string> warnings;    // what some readers do not take, with the reason
};

// Local. exported: of the model without adapters. base: the model that the adapters belong to, a folder or a name of
// the hub. Experts get one adapter each, as vLLM and peft read them. Throws ConfigError, naming the module, for what
// the format cannot say: adapters of several ranks, alphas or kinds of scale, and of both LoRA and DoRA; weights that
// are trained beside their own adapter; embeddings, heads and experts that are trained whole.
[[nodiscard]] PeftExport peft_export(const AdaptedModel& adapted, const StateMapper& exported,
                                     const std::optional<std::string>& base);

}  // namespace d9d
