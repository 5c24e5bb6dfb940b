// The data of a job and the loss of one of its microbatches: the same whoever trains on it.
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/core/mesh/device_mesh.h"

#include "tests/layout/layout_model.h"

namespace d9d::test {

// Scalars, float64; the loss has a graph.
struct LayoutLoss {
  at::Tensor loss;
  at::Tensor weight;
};

// Runs the forward passes of microbatch `number` of the job (it counts through steps). `positions`: the ranks over
// which sequences are cut, of which this rank takes its part; weights count what is here, as a task's would.
[[nodiscard]] LayoutLoss microbatch_loss(const ModulePtr<LayoutModel>& model, const LayoutJob& job, std::int64_t step,
                                         std::int64_t number, const DeviceMesh& positions);

}  // namespace d9d::test
