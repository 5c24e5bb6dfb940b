// Expert choices as a mask over experts, the form in which expert-parallel transports count and exchange tokens. The
// layers of this library do not call it; it is kept for transports of other programs (row KER-4 of the checklist).
//
// Example (3 experts here)
//   ids = [[2, -1]], probs = [[0.7, 0.3]]
//   const auto [mask, dense] = d9d::kernels::indices_to_multihot(ids, probs, 3);
//   mask    // [[false, false, true]]
//   dense   // [[0, 0, 0.7]]
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

struct MultihotChoices {
  at::Tensor mask;   // [T, E] bool
  at::Tensor probs;  // [T, E] dtype of the given probs, zero where not chosen
};

// indices: [T, k] int64, distinct within a token; -1 and numbers from num_experts = E on mean experts on other ranks.
// probs: [T, k]. Differentiable in probs (zero for choices of experts on other ranks). Does not synchronise with the
// device. Throws ConfigError for shapes that do not fit.
[[nodiscard]] MultihotChoices indices_to_multihot(const at::Tensor& indices, const at::Tensor& probs,
                                                  std::int64_t num_experts);

}  // namespace d9d::kernels
