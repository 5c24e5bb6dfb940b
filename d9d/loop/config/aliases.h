// Configuration files of d9d 0.16, read as what they mean today: a change to the JSON before it is parsed.
//
// Example
//   const auto config = load_config<PretrainConfig>(argc, argv, apply_0_16_aliases);
#pragma once

#include <string>
#include <vector>

#include "d9d/base/config/json_text.h"
#include "d9d/base/record.h"

namespace d9d {

// For the sections `trainer` and `inference`:
//   batching.{global_batch_size, microbatch_size}                    -> data.*
//   data_loading.{num_workers, pin_memory, persistent_workers}       -> data.*
//   profiling.enabled = false | true                                 -> the section is off | on
// and for `model_provider`:
//   model.model                                                      -> model
//   model.{num_labels, classifier_dropout | embedding_dim, normalize} -> head
// Returns a note for each that was used. Throws ConfigError where both forms are there and differ.
[[nodiscard]] std::vector<std::string> apply_0_16_aliases(Json& config, const ConfigPath& root);

}  // namespace d9d
