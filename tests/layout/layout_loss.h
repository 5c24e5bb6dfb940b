// The data of a job and the loss of one of its microbatches, which are the same on every rank that computes them.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/position_cut.h"

#include "tests/layout/layout_model.h"
#include "tests/layout/mutation.h"

namespace d9d::test {

// Scalars, float64; the loss requires a gradient.
struct LayoutLoss {
  at::Tensor loss;
  at::Tensor weight;
};

// How a rank arranges what belongs to it.
struct Rows {
  PositionCut positions = {};         // this rank uses its part of each sequence
  std::int64_t position_divisor = 1;  // of the ranks that share a sequence
  bool are_padded = false;            // Layout::pads
  Mutation mutation = Mutation::kNone;
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
