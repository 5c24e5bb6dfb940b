// Computes the memory that the ranks of a job will need, without devices: the job's own code builds the stages of a
// rank, lays them out, and runs a step on tensors of the meta device, whose bytes are counted.
//
// Example
//   CausalLMProvider model(...);                                         // the same as the job's
//   const auto ranks = plan_memory({.mesh = config.mesh, .trainer = config.trainer, .optimizer = config.optimizer,
//                                   .num_sequences = 1, .sequence_length = 4096, .num_microbatches = 16}, model);
//   ranks[0].total;                                                      // bytes, on the first rank of the pipeline
//
// Tensors of the meta device stand for those of a GPU: kernels save for backward what CUDA kernels save, except for one
// number per row (inverse norms, softmax of a router). All experts get the same number of tokens.
// Context-parallel ranks are taken to be on one machine. Not counted:
// blocks by which tensor-parallel ranks copy activations, temporary tensors of the optimiser, workspaces of libraries,
// fragmentation of the allocator, the CUDA context, and prefetched batches.
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
  TrainerConfig trainer = {};  // used for its schedule, its dtypes of gradients and master weights, and averages
  OptimizerConfig optimizer = {};
  std::int64_t num_sequences = 1;  // in a microbatch
  std::int64_t sequence_length = 1;
  std::int64_t num_microbatches = 1;  // in a step, on each rank
};

// The memory of one stage on one rank, in bytes unless noted otherwise.
struct StageMemory {
  StageIndex stage = {};
  std::int64_t num_parameters = 0;  // elements that the rank keeps
  std::int64_t parameters = 0;      // includes master weights, buffers and the padding of shards
  std::int64_t optimizer = 0;       // its state, and averages of the weights (trainer.ema)
  // Under FSDP: gathered parameters, and those full gradients before reduction that are not counted in `gradients`.
  std::int64_t gathered = 0;
  std::int64_t gradients = 0;    // largest size between two microbatches
  std::int64_t activations = 0;  // kept per microbatch from its forward to its backward, with its inputs
  std::int64_t deferred = 0;     // kept per microbatch from I to W
  std::int64_t num_live = 0;     // microbatches with activations, at the time when the rank keeps most bytes
  std::int64_t num_waiting = 0;  // microbatches between I and W, at that time
};

struct RankMemory {
  std::int64_t pipeline_rank = 0;
  std::vector<StageMemory> stages;
  std::int64_t messages = 0;   // receive buffers
  std::int64_t exchanges = 0;  // blocks by which context-parallel ranks copy keys and values
  std::int64_t working = 0;    // most bytes that one forward or backward needs in addition while it runs
  // The peak of a step. It is less than the sum of all other members if these peak at different times.
  std::int64_t total = 0;

  [[nodiscard]] std::int64_t sum_of(std::int64_t StageMemory::*bytes) const;
  [[nodiscard]] std::int64_t activations() const;  // bytes of all live and all waiting microbatches
};

// Local. Returns one entry per pipeline rank. It is for the first of the ranks with the same stages, whose shards are
// the largest. Throws what building the job would throw: ConfigError for an invalid mesh, schedule or number of
// microbatches.
[[nodiscard]] std::vector<RankMemory> plan_memory(const MemoryRequest& request,
                                                  ModelProvider<LanguageModelTypes>& model);

// Functions that count the bytes of a rank's tensors on its device.
struct MemoryMeter {
  std::function<std::int64_t()> live_bytes;
  std::function<std::int64_t()> peak_bytes;  // since reset_peak()
  std::function<void()> reset_peak;
};

// Collective over the ranks of the context, which pass the same request. Returns the memory of this rank, measured
// while one step runs on the context's device. plan_memory() calls it with a context on the meta device.
[[nodiscard]] RankMemory measure_memory(const DistContext& context, const MemoryRequest& request,
                                        ModelProvider<LanguageModelTypes>& model, const MemoryMeter& meter);

}  // namespace d9d
