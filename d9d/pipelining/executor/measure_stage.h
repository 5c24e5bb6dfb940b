// Measures what one stage of a pipeline costs on its device: the seconds of F, B, I and W, and the bytes that are kept
// between them. Also measures how long two composed computations take.
//
// Example
//   const StageCosts costs = measure_stage(stage, {.arrived = transfer, .is_last = false, .device = device});
//   simulate(program, {.costs = {.stages = {costs}}});
//   const PassCosts pass = measure_pass(stage, sample, {.is_split = false, .backward_follows = true});
//   const double together = measure_composed({stage, sample}, {other_stage, sample}, &streams);
//   const double hidden = costs.forward + other_costs.backward - together;
//
// The stage runs F B and F I W of one microbatch as the executor does: once to warm up, num_repeats times for the
// medians, and then F I W once more to measure memory. The gradients of its outputs are random. The weight gradients of
// all these passes accumulate in the stage.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/pipelining/executor/compute_streams.h"
#include "d9d/pipelining/executor/pipeline_stage.h"
#include "d9d/pipelining/program/pipeline_costs.h"

namespace d9d {

struct StageSample {
  MicrobatchIndex microbatch = {0};
  std::vector<at::Tensor> arrived = {};  // inputs, from the stage before, on the device; each forward gets a copy
  bool is_last = false;                  // its forward returns a loss
  c10::Device device = c10::DeviceType::CPU;
  std::int64_t num_repeats = 5;
  std::function<void()> before_forward = {};  // called before each forward, and not measured
};

// Returns the times and the memory of a stage's forward and backward; collective if these are. In the result,
// activation_bytes is the memory that a forward keeps for its backward after its outputs were sent, its inputs
// included. deferred_bytes is the memory that the input pass (I) keeps for the weight pass (W) after its gradients were
// sent.
[[nodiscard]] StageCosts measure_stage(PipelineStage& stage, const StageSample& sample);

// How a microbatch passes through a stage.
struct PassKind {
  bool is_split = false;         // its backward is I and W
  bool backward_follows = true;  // right after the forward (PipelineStage::forward)
};

// What one pass of a microbatch costs: its forward and its backward.
struct PassCosts {
  double seconds = 0;           // of both
  double activation_bytes = 0;  // as StageCosts
  double deferred_bytes = 0;    // likewise; 0 unless it is split
  double host_bytes = 0;        // page-locked, kept from the forward to the backward; 0 on CPUs
  double peak_bytes = 0;        // the most at a time, without what was there before; at least activation_bytes
  double allocated_bytes = 0;   // of all tensors that the forward makes, kept or not
};

// Collective if the stage's forward or backward is. Runs sample.num_repeats passes after one that warms up: seconds are
// the median, and bytes the most of these passes.
[[nodiscard]] PassCosts measure_pass(PipelineStage& stage, const StageSample& sample, const PassKind& kind);

// Collective if the stage's forward or backward is. Runs one pass and returns the most bytes at a time, without what
// was there before: also the gradients that it makes, if the parameters had none.
[[nodiscard]] double peak_of_pass(PipelineStage& stage, const StageSample& sample, const PassKind& kind);

struct SampledStage {
  PipelineStage& stage;
  const StageSample& sample;
};

// Collective if the stages' forwards or backwards are. Returns the median seconds that the forward of one stage
// composed with the backward of another takes, for one microbatch each. They run on the two streams of `streams`, or,
// if it is null, the backward first and then the forward. Repeats backward.sample.num_repeats times; does not call
// forward.sample.before_forward.
[[nodiscard]] double measure_composed(const SampledStage& forward, const SampledStage& backward,
                                      const ComputeStreams* streams);

}  // namespace d9d
