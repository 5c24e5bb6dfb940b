// What a message between neighbouring ranks of a pipeline costs, measured: round trips of a transfer and of one number.
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

// Shapes and dtypes, on any device; on both ranks of a link the same.
struct LinkSample {
  std::vector<at::Tensor> from_before = {};  // what the rank before sends; empty on the first
  std::vector<at::Tensor> to_next = {};      // empty on the last
  std::int64_t num_repeats = 5;
};

// Collective over the ranks of a pipeline. Seconds, of the link to the next rank, medians; zeros on the last rank. One
// pair of neighbours after the other.
[[nodiscard]] LinkCosts measure_links(const DistContext& context, const StageLinksConfig& config,
                                      const LinkSample& sample);

}  // namespace d9d
