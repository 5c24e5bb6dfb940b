// Merges adapters while a model is exported: the model in memory keeps them.
//
// Example
//   write_model_state("export", merged_on_the_way(adapted, to_huggingface, at::kBFloat16), state_of(*model), ranks);
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "d9d/model_state/mapper/state_mapper.h"
#include "d9d/peft/adapted_model.h"

namespace d9d {

// The mapper `exported`, of the model without adapters, for the model with them: W + scale * B A in place of each W,
// with rows of the norms that magnitudes say, computed in float32 (float64 for a weight in float64) and rounded once.
// dtype: of all floating-point outputs; none: each keeps its own. `exported` is of an untied model if
// AdaptedModel::untied is not empty. Throws ConfigError, naming the weight, for a sum that it does not export; reading
// a sum that overflows throws ConfigError.
[[nodiscard]] StateMapper merged_on_the_way(const AdaptedModel& adapted, const StateMapper& exported,
                                            const std::optional<at::ScalarType>& dtype = {});

// Throws ConfigError if the sum, which is in a wide dtype, has finite values that are not finite in dtype. name: in the
// message.
void check_merged_fits(const std::string& name, const at::Tensor& sum, at::ScalarType dtype);

}  // namespace d9d
