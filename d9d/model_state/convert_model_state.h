// Maps the tensors of a folder and writes the outputs as another folder, on several threads. No model is built.
//
// Example
//   const HuggingFaceDirectory directory("published");
//   convert_model_state("packed", mapper, tensors_of(directory), {.num_workers = 8});
//
// tools/convert is a program for this. For a dry run of a mapper see model_state/mapping_report.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "d9d/model_state/mapped_sources.h"

namespace d9d {

struct ConvertProgress {
  std::size_t num_tensors = 0;  // of the folder that is written
  std::size_t num_written = 0;
  std::int64_t num_bytes = 0;
  std::int64_t bytes_written = 0;
};

struct ConvertOptions {
  std::int64_t max_shard_bytes = std::int64_t{4} << 30;  // of data; a larger tensor gets a shard of its own
  int num_workers = 1;                                   // threads
  std::map<std::string, std::string> files = {};         // text files beside the weights, by name: config.json, ...
  std::optional<std::string> only_file = {};             // the name of one file for all weights, whatever its size
  // Called before the first tensor and after each one, or after each group with functions, by one thread at a time. An
  // exception that it throws ends the conversion.
  std::function<void(const ConvertProgress&)> on_progress = nullptr;
};

// Local, blocking. The folder is what write_model_state() writes from a model with these tensors; its bytes do not
// depend on the number of workers. It appears completely or not at all, and replaces an earlier export. Each worker
// holds one output, or one group with functions, and a buffer of 8 MiB in memory. Returns the tensors that are no input
// of the mapper. Throws as source_groups() before anything is written, and as write_model_state() does.
std::vector<std::string> convert_model_state(const std::filesystem::path& folder, const StateMapper& mapper,
                                             const NamedTensors& tensors, const ConvertOptions& options = {});

}  // namespace d9d
