// Writes the state of a model over the ranks of a job as one folder in the layout of the Hugging Face hub.
//
// Example
//   write_model_state("export", qwen3_dense_to_huggingface(parameters, head), state_of(*model), job,
//                     {.files = {{"config.json", config.dump(2)}}});
//
// The folder's bytes do not depend on the number of ranks or on the model's layout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "d9d/core/dtensor/dtensor.h"
#include "d9d/model_state/mapper/state_mapper.h"
#include "d9d/modules/module.h"

namespace d9d {

// Parameters, as this rank stores them, and persistent buffers.
[[nodiscard]] std::map<std::string, DTensor> state_of(const Module& module);

struct WriteOptions {
  std::int64_t max_shard_bytes = std::int64_t{4} << 30;  // of data; a larger tensor gets a shard of its own
  std::map<std::string, std::string> files = {};         // text files beside the weights, by name: config.json, ...
  std::optional<std::string> only_file = {};             // the name of one file for all weights, whatever its size
};

// Collective over `job`. `state`: this rank's part of each tensor; a tensor need not be on all ranks (pipeline stages).
// The outputs, in the order of the mapper's groups, fill model.safetensors, or, if one shard has no room for them,
// model-00001-of-00003.safetensors, ..., and their index. Shards are distributed among the ranks: the writer of a shard
// receives the elements that it needs from ranks that hold them, one output at a time, or one group at a time if the
// group has functions. The folder appears completely or not at all, and replaces an earlier export; a folder that holds
// other files is an error (check_huggingface_target). Returns tensors of the state that are no input of any group.
// Throws on all ranks: StateError for inputs that no rank has and for shapes and dtypes that do not fit, before
// anything is written; IoError with rank and reason if a file cannot be written; ConfigError for tensors that are
// partial sums (Partial).
std::vector<std::string> write_model_state(const std::filesystem::path& folder, const StateMapper& mapper,
                                           const std::map<std::string, DTensor>& state, const DeviceMesh& job,
                                           const WriteOptions& options = {});

}  // namespace d9d
