// Fills a module with tensors of a folder: each rank reads the boxes of its parameters that it holds.
//
// Example
//   const HuggingFaceDirectory directory("Qwen3-0.6B");
//   const LoadReport report =
//       load_model_state(*model, mapper, tensors_of(directory), {.may_be_missing = "score\\..*"});
//   for (const std::string& name : report.missing) context.log().warning("initial values stay in ", name);
#pragma once

#include <string>
#include <vector>

#include "d9d/model_state/io/box_reader.h"
#include "d9d/model_state/mapped_sources.h"
#include "d9d/modules/module.h"

namespace d9d {

struct LoadOptions {
  // Regular expression (base/name_regex.h) over whole names: parameters that the folder may lack; these keep their
  // values.
  std::string may_be_missing = {};
  ReadOptions read = {};
};

// The result on this rank; names are sorted.
struct LoadReport {
  std::vector<std::string> loaded;   // parameters and buffers
  std::vector<std::string> missing;  // parameters that are not among the tensors, as may_be_missing allows
  std::vector<std::string> unused;   // tensors that the mapper does not take, for any output
  BytesRead bytes;                   // of files; inputs of the mapper's functions are not counted
};

// Local. Fills each parameter with its part, in the parameter's dtype and on its device, and each persistent buffer
// that the mapper outputs. Other outputs (those of another pipeline stage) are not read. Groups with functions are held
// in memory one at a time; all others are copied from the file directly to their target. Throws StateError before any
// value changes: as source_groups() does, for parameters that the mapper does not make, and for shapes that differ.
// Throws IoError if a file cannot be read; some values have changed then.
LoadReport load_model_state(Module& module, const StateMapper& mapper, const NamedTensors& tensors,
                            const LoadOptions& options = {});

}  // namespace d9d
