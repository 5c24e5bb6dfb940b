// Translates configuration files of d9d 0.16 to today's keys: changes the JSON before it is parsed.
//
// Example
//   const auto config = load_config<PretrainConfig>(argc, argv, apply_0_16_aliases);
#pragma once

#include <string>
#include <vector>

#include "d9d/base/config/json_text.h"
#include "d9d/base/record.h"

namespace d9d {

// Replaces these keys in the sections `trainer` and `inference`:
//   batching.{global_batch_size, microbatch_size}                    -> data.*
//   data_loading.{num_workers, pin_memory, persistent_workers}       -> data.*
//   profiling.enabled = false | true                                 -> the section is off | on
// and these in `model_provider`:
//   model.model                                                      -> model
//   model.{num_labels, classifier_dropout | embedding_dim, normalize} -> head
// Returns a note for each alias that was used. Throws ConfigError if both forms are present with different values.
[[nodiscard]] std::vector<std::string> apply_0_16_aliases(Json& config, const ConfigPath& root);

}  // namespace d9d
