// What one stage of a pipeline costs on its device, measured: seconds of F, B, I and W, and what is kept between them.
//
// Example
//   const StageCosts costs = measure_stage(stage, {.arrived = transfer, .is_last = false, .device = device});
//   simulate(program, {.costs = {.stages = {costs}}});
//
// The stage runs F and B, and F, I and W, of one microbatch, as the executor does: as many times as asked for and once
// more before, of which the medians count, and once to measure memory. Gradients that arrive are random. The stage's
// own gradients add up.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

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

}  // namespace d9d
