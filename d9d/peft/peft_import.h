// Reads adapters in the format of Hugging Face peft into a model.
//
// Example
//   const PeftFolder folder("adapters");
//   load_model_state(*model, from_peft(adapted, to_huggingface, folder), folder.tensors(), {.may_be_missing = ".*"});
#pragma once

#include "d9d/model_state/mapper/state_mapper.h"
#include "d9d/peft/adapted_model.h"
#include "d9d/peft/peft_folder.h"

namespace d9d {

// Local. From the tensors of the folder to those of the model: adapters of modules under their names, of experts under
// a name for each expert or joined as peft has them with transformers 5, and modules_to_save. exported: of the model
// without adapters, to the names of Hugging Face, as of merged_on_the_way(). Throws ConfigError unless the folder has
// an adapter of the same kind, rank and scale for each module that has one in the model, and nothing else.
[[nodiscard]] StateMapper from_peft(const AdaptedModel& model, const StateMapper& exported, const PeftFolder& folder);

}  // namespace d9d
