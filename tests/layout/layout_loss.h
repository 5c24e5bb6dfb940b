// The data of a job and the loss of one of its microbatches, which are the same on every rank that computes them.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/core/mesh/device_mesh.h"

#include "tests/layout/layout_model.h"

namespace d9d::test {

// Scalars, float64; the loss requires a gradient.
struct LayoutLoss {
  at::Tensor loss;
  at::Tensor weight;
};

// How a rank arranges what belongs to it.
struct Rows {
  DeviceMesh positions = {};     // the ranks over which sequences are cut; this rank uses its part
  std::int64_t num_slices = 1;   // ranks that cut this part further, each by itself
  bool are_padded = false;       // Layout::pads
  bool padding_is_data = false;  // a fault: microbatches do not say which positions are padding
};

// What the stages of a pipeline get of microbatch `number`, counted over the job.
struct StageInputs {
  SequenceInput input;  // into the first one
  SequenceHeadsShared shared;
};
[[nodiscard]] StageInputs stage_inputs(const LayoutJob& job, std::int64_t number, const Rows& rows);
// Of what the last stage returns for it. Jobs without pairs.
[[nodiscard]] LayoutLoss stage_loss(const DecoderHeadsOutput& output, const LayoutJob& job, std::int64_t step,
                                    std::int64_t number, const Rows& rows);

// Runs the forward passes of microbatch `number`, counted over the job. Weights count only what the rank holds, as
// those of a task would.
[[nodiscard]] LayoutLoss microbatch_loss(const ModulePtr<LayoutModel>& model, const LayoutJob& job, std::int64_t step,
                                         std::int64_t number, const Rows& rows);

}  // namespace d9d::test
