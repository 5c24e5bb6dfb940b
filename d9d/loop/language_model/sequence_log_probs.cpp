#include "d9d/loop/language_model/sequence_log_probs.h"

#include <ATen/ATen.h>

#include "d9d/core/collectives/differentiable.h"

namespace d9d {

at::Tensor token_log_probs(const at::Tensor& cross_entropy) { return cross_entropy.neg(); }

// Negates the sums, so that the gradient of a sequence's positions remains one expanded number.
at::Tensor sequence_log_probs(const at::Tensor& cross_entropy, const DeviceMesh& positions) {
  const at::Tensor here = cross_entropy.sum(/*dim=*/1).neg();
  return positions.num_ranks() == 1 ? here : all_reduce_both(here, positions.communicator());
}

}  // namespace d9d
