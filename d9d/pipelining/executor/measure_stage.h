// What one stage of a pipeline costs on its device, measured: seconds of F, B, I and W, and what is kept between them;
// and what two take that are composed.
//
// Example
//   const StageCosts costs = measure_stage(stage, {.arrived = transfer, .is_last = false, .device = device});
//   simulate(program, {.costs = {.stages = {costs}}});
//   const double together = measure_composed({stage, sample}, {other_stage, sample}, &lanes);
//   const double hidden = costs.forward + other_costs.backward - together;
//
// The stage runs F and B, and F, I and W, of one microbatch, as the executor does: as many times as asked for and once
// more before, of which the medians count, and once to measure memory. Gradients that arrive are random. The stage's
// own gradients add up.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/pipelining/executor/lanes.h"
#include "d9d/pipelining/executor/pipeline_stage.h"
#include "d9d/pipelining/program/pipeline_costs.h"

namespace d9d {

struct StageSample {
  MicrobatchIndex microbatch = {0};
  std::vector<at::Tensor> arrived = {};  // of the stage before, on the device; each forward gets a copy
  bool is_last = false;                  // its forward returns a loss
  c10::Device device = c10::DeviceType::CPU;
  std::int64_t num_repeats = 5;
  std::function<void()> before_forward = {};  // called before each forward, and not measured
};

// Collective where the stage's forward or backward is. activation_bytes: what a forward leaves behind when its outputs
// are sent, with what arrived. deferred_bytes: what I leaves to W when the gradients of what arrived are sent.
[[nodiscard]] StageCosts measure_stage(PipelineStage& stage, const StageSample& sample);

struct SampledStage {
  PipelineStage& stage;
  const StageSample& sample;
};

// Collective where the stages' forwards or backwards are. Seconds of the forward of one stage and the backward of
// another, of one microbatch each, that begin together as the executor runs composed computations: in two lanes, or the
// backward first without them. As many times as `backward` asks for; `forward` has no before_forward.
[[nodiscard]] double measure_composed(const SampledStage& forward, const SampledStage& backward, const Lanes* lanes);

}  // namespace d9d
