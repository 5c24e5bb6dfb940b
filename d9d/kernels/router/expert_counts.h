// Counts how many tokens chose each expert.
//
// Example
//   d9d::kernels::add_expert_counts_(tokens_per_expert, routing.indices);
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

// counts: [E] int64; expert_ids: int64 of any shape, each in [0, E). Adds to counts[e] the occurrences of e. Not
// differentiable. Does not synchronise with the device. Throws ConfigError for other dtypes or shapes.
void add_expert_counts_(at::Tensor& counts, const at::Tensor& expert_ids);

}  // namespace d9d::kernels
