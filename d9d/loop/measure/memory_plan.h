// Computes the memory of the ranks of a job without devices: the job's own code builds the stages of a rank, lays them
// out, and runs a step on tensors of the meta device, whose bytes are counted.
//
// Example
//   CausalLMProvider model(...);                                         // as the job has it
//   const auto ranks = plan_memory({.mesh = config.mesh, .trainer = config.trainer, .optimizer = config.optimizer,
//                                   .num_sequences = 1, .sequence_length = 4096, .num_microbatches = 16}, model);
//   ranks[0].total;                                                      // bytes, on the first rank of the pipeline
//
// Tensors of the meta device stand for those of a GPU: kernels save for backward what CUDA kernels save, except for one
// number per row (inverse norms, softmax of a router). All experts get the same number of tokens. Not counted:
// temporary tensors of the optimiser, workspaces of libraries, fragmentation of the allocator, the CUDA context, and
// prefetched batches.
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

// In bytes, unless noted otherwise.
struct StageMemory {
  StageIndex stage = {};
  std::int64_t num_parameters = 0;  // elements that the rank keeps
  std::int64_t parameters = 0;      // with master weights, buffers and the padding of shards
  std::int64_t optimizer = 0;
  // Under FSDP: gathered parameters, and full gradients before their reduction, except for those that `gradients`
  // counts.
  std::int64_t gathered = 0;
  std::int64_t gradients = 0;    // the largest between two microbatches
  std::int64_t activations = 0;  // of a microbatch, from its forward to its backward, with the inputs that it received
  std::int64_t deferred = 0;     // of a microbatch, from I to W
  std::int64_t num_live = 0;     // microbatches with activations when the rank keeps the most
  std::int64_t num_waiting = 0;  // microbatches between I and W, at the same time
};

struct RankMemory {
  std::int64_t pipeline_rank = 0;
  std::vector<StageMemory> stages;
  std::int64_t messages = 0;  // receive buffers
  std::int64_t working = 0;   // what else a forward or a backward needs while it runs, at most
  // The peak of a step. Less than the sum of the above if these peak at different times.
  std::int64_t total = 0;

  [[nodiscard]] std::int64_t sum_of(std::int64_t StageMemory::*bytes) const;
  [[nodiscard]] std::int64_t activations() const;  // of all live microbatches, with deferred bytes
};

// Local. Returns one entry per pipeline rank, for the first of its ranks, which has the largest part if parts are
// unequal. Throws what building the job would throw: ConfigError for an invalid mesh, schedule or number of
// microbatches.
[[nodiscard]] std::vector<RankMemory> plan_memory(const MemoryRequest& request,
                                                  ModelProvider<LanguageModelTypes>& model);

// Counts the bytes of the tensors of a rank, in the way of its device.
struct MemoryMeter {
  std::function<std::int64_t()> live_bytes;
  std::function<std::int64_t()> peak_bytes;  // since reset_peak()
  std::function<void()> reset_peak;
};

// Collective over the ranks of the context, which pass the same request. Returns the memory of this rank as measured:
// what plan_memory() computes without a device runs with real tensors on the context's.
[[nodiscard]] RankMemory measure_memory(const DistContext& context, const MemoryRequest& request,
                                        ModelProvider<LanguageModelTypes>& model, const MemoryMeter& meter);

}  // namespace d9d
