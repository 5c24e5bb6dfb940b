// Measures what a message between neighbouring ranks of a pipeline costs, by round trips of a transfer and of one
// number.
//
// Example
//   const LinkCosts costs = measure_links(context, {}, {.to_next = first.transfer({0}, StageBoundary::kOutgoing)});
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/pipelining/executor/stage_links.h"
#include "d9d/pipelining/program/pipeline_costs.h"

namespace d9d {

// Tensors with the shapes and dtypes of the transfers on a rank's links, on any device. Both ranks of a link must pass
// the same shapes and dtypes.
struct LinkSample {
  std::vector<at::Tensor> from_before = {};  // sent by the rank before; empty on the first rank
  std::vector<at::Tensor> to_next = {};      // sent to the next rank; empty on the last rank
  std::int64_t num_repeats = 5;
};

// Collective over the ranks of a pipeline. Returns the median costs of the link to the next rank, in seconds; zeros on
// the last rank. Pairs of neighbours are measured one after the other.
[[nodiscard]] LinkCosts measure_links(const DistContext& context, const StageLinksConfig& config,
                                      const LinkSample& sample);

}  // namespace d9d
