// Adds the terms of adapters to the weights, so that the model computes the same without adapters.
//
// Example
//   MergedPeft merged = merge_peft(*model);      // lora_A and lora_B are gone from the model
//   evaluate(*model);
//   merged.unmerge();                            // bit for bit as before
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "d9d/modules/module.h"

namespace d9d {

// Has the adapters, and copies of the weights as they were, on the host. Drop it to stay merged.
class MergedPeft {
 public:
  explicit MergedPeft(std::vector<std::function<void()>> undo) : undo_(std::move(undo)) {}
  // Local. Restores weights and adapters. A second call does nothing.
  void unmerge();

 private:
  std::vector<std::function<void()>> undo_;
};

// Local. W += scale * B A for every module with an adapter, and then m / |W| * W of rows with magnitudes, computed in
// float32 (float64 for a weight in float64) and rounded once to the dtype in which the weight is kept; the adapter is
// then removed. Weights may be sharded by tensor and expert parallelism; norms of rows that are cut are collective over
// their ranks. Not between the forward and the backward of a microbatch. Throws ConfigError, and leaves the model as it
// was, for weights of FSDP, which is not built in this version, for those that several modules have, such as a tied
// head and embedding, since merging the adapter of one would change the other, and for a sum that overflows.
[[nodiscard]] MergedPeft merge_peft(Module& model);

}  // namespace d9d
