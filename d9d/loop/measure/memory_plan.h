// What the ranks of a job keep in memory, without devices: the job's own code builds the stages of a rank, lays them
// out and runs a step on tensors of the meta device, which are counted.
//
// Example
//   CausalLMProvider model(...);                                         // as the job has it
//   const auto ranks = plan_memory({.mesh = config.mesh, .trainer = config.trainer, .optimizer = config.optimizer,
//                                   .num_sequences = 1, .sequence_length = 4096, .num_microbatches = 16}, model);
//   ranks[0].total;                                                      // bytes, on the first rank of the pipeline
//
// Tensors of the meta device stand for those of a GPU: kernels keep for backward what CUDA kernels keep, except for a
// number a row (inverse norms, softmax of a router). Experts get equally many tokens. Not counted: the optimiser's own
// temporary tensors, workspaces of libraries, the allocator's fragments, CUDA's context, and read-ahead batches.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/mesh/device_mesh_parameters.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/loop/language_model/language_model_task.h"
#include "d9d/loop/task/providers.h"
#include "d9d/optim/config.h"
#include "d9d/pipelining/program/action.h"

namespace d9d {

struct MemoryRequest {
  DeviceMeshParameters mesh = {};
  TrainerConfig trainer = {};  // schedule, dtypes of gradients and master weights
  OptimizerConfig optimizer = {};
  std::int64_t num_sequences = 1;  // of a microbatch
  std::int64_t sequence_length = 1;
  std::int64_t num_microbatches = 1;  // of a step, on a rank
};

// All in bytes but where it says otherwise.
struct StageMemory {
  StageIndex stage = {};
  std::int64_t num_parameters = 0;  // elements that the rank keeps
  std::int64_t parameters = 0;      // with master weights, buffers and the padding of shards
  std::int64_t optimizer = 0;
  // Under FSDP: gathered parameters, and full gradients before their reduction that are no gradients of a whole step.
  std::int64_t gathered = 0;
  std::int64_t gradients = 0;    // the most between two microbatches
  std::int64_t activations = 0;  // of a microbatch, from its forward to its backward, with what arrived for it
  std::int64_t deferred = 0;     // of a microbatch, from I to W
  std::int64_t num_live = 0;     // microbatches with activations, where the rank keeps most
  std::int64_t num_waiting = 0;  // microbatches between I and W, at the same time
};

struct RankMemory {
  std::int64_t pipeline_rank = 0;
  std::vector<StageMemory> stages;
  std::int64_t messages = 0;  // inboxes
  std::int64_t working = 0;   // what else a forward or a backward needs while it runs, where the rank needs most
  // The most of all at once in a step. Less than the sum of the above where that is not needed at the same time.
  std::int64_t total = 0;

  [[nodiscard]] std::int64_t sum_of(std::int64_t StageMemory::*bytes) const;
  [[nodiscard]] std::int64_t activations() const;  // of all live microbatches, with what waits for W
};

// Of the first rank of each pipeline rank, which has the largest part where ranks have unequal ones. Local. Throws what
// building the job would throw: ConfigError for a mesh, schedule or number of microbatches that cannot be.
[[nodiscard]] std::vector<RankMemory> plan_memory(const MemoryRequest& request,
                                                  ModelProvider<LanguageModelTypes>& model);

// The bytes of a rank's tensors, counted by whatever counts them on its device.
struct MemoryMeter {
  std::function<std::int64_t()> live_bytes;
  std::function<std::int64_t()> peak_bytes;  // since reset_peak()
  std::function<void()> reset_peak;
};

// Collective over the ranks of the context, with the same request: what plan_memory() runs for one rank, on the
// context's device.
[[nodiscard]] RankMemory measure_memory(const DistContext& context, const MemoryRequest& request,
                                        ModelProvider<LanguageModelTypes>& model, const MemoryMeter& meter);

}  // namespace d9d
