// Collectives on local tensors whose gradients flow back through the adjoint collective. Tensor, sequence, context and
// expert parallelism put them between their local computations.
//
// Example
//   const at::Tensor whole = all_gather_along(x, /*dim=*/1, tp);          // [b, s / W, h] -> [b, s, h]
//   const at::Tensor summand = at::linear(whole, weight_shard);
//   const at::Tensor y = reduce_scatter_along(summand, /*dim=*/1, tp);    // -> [b, s / W, h], summed
//
//   function               forward                    backward
//   all_gather_along       all_gather                 reduce_scatter, sum
//   reduce_scatter_along   reduce_scatter, sum        all_gather
//   all_reduce_forward     all_reduce, sum            nothing
//   all_reduce_backward    nothing                    all_reduce, sum
//   all_reduce_both        all_reduce, sum            all_reduce, sum
//   all_to_all_along       all_to_all, equal parts    all_to_all with the dims swapped
//   all_to_all_rows        all_to_all, splits         all_to_all with the splits swapped
//
// All functions are Collective in forward, and in backward if the input requires gradients; either all ranks or none
// require them. Shapes and dtypes are the same on all ranks, except for the splits of all_to_all_rows. Inputs may have
// any strides; results are contiguous, or the input itself where nothing is communicated, as in a group of one rank.
// Dims may be negative. For layouts that do not divide evenly, or whose gradients need another collective, see
// core/dtensor/redistribute.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"

namespace d9d {

using CommunicatorPtr = std::shared_ptr<Communicator>;  // the graph keeps it until backward

// Returns x with the size of dim multiplied by W, the number of ranks.
[[nodiscard]] at::Tensor all_gather_along(const at::Tensor& x, std::int64_t dim, const CommunicatorPtr& communicator);
// Returns the sum with the size of dim divided by W. Throws ConfigError unless W divides it.
[[nodiscard]] at::Tensor reduce_scatter_along(const at::Tensor& x, std::int64_t dim,
                                              const CommunicatorPtr& communicator);
[[nodiscard]] at::Tensor all_reduce_forward(const at::Tensor& x, const CommunicatorPtr& communicator);
[[nodiscard]] at::Tensor all_reduce_backward(const at::Tensor& x, const CommunicatorPtr& communicator);
// For sums that every rank uses in its own loss: the gradient is that of the sum of the ranks' losses. Meant for a few
// numbers, since a checkpointed body keeps the result, so that its recomputation need not communicate.
[[nodiscard]] at::Tensor all_reduce_both(const at::Tensor& x, const CommunicatorPtr& communicator);
// Part i of split_dim goes to rank i; received parts are joined along concat_dim in the order of ranks. Throws
// ConfigError unless W divides split_dim. To exchange sharded positions for sharded heads:
// all_to_all_along(q, kHeads, kPositions, cp).
[[nodiscard]] at::Tensor all_to_all_along(const at::Tensor& x, std::int64_t split_dim, std::int64_t concat_dim,
                                          const CommunicatorPtr& communicator);
// Sends rows of dim 0 as Communicator::all_to_all does. Throws ConfigError unless there are W splits of each kind,
// none negative, and input_splits sum to the rows of x.
[[nodiscard]] at::Tensor all_to_all_rows(const at::Tensor& x, const std::vector<std::int64_t>& output_splits,
                                         const std::vector<std::int64_t>& input_splits,
                                         const CommunicatorPtr& communicator);

}  // namespace d9d
