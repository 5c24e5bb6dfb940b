// Checks the arguments of an operation and describes it. Ranks that call the same operation get the same text.
//
// Example
//   const std::string text = operation::all_reduce(*this, tensor, op);  // "all_reduce(sum, Float [4, 8])"
//
// Each function throws ConfigError unless tensors are contiguous, on the communicator's device, of one dtype, and of
// matching sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"

namespace d9d::operation {

[[nodiscard]] std::string all_reduce(const Communicator& group, const at::Tensor& tensor, ReduceOp op);
[[nodiscard]] std::string all_gather(const Communicator& group, const at::Tensor& output, const at::Tensor& input);
[[nodiscard]] std::string reduce_scatter(const Communicator& group, const at::Tensor& output, const at::Tensor& input,
                                         ReduceOp op);
[[nodiscard]] std::string all_to_all(const Communicator& group, const at::Tensor& output, const at::Tensor& input,
                                     const std::vector<std::int64_t>& output_splits,
                                     const std::vector<std::int64_t>& input_splits);
[[nodiscard]] std::string broadcast(const Communicator& group, const at::Tensor& tensor, std::int64_t root);
[[nodiscard]] std::string gather(const Communicator& group, const std::vector<at::Tensor>& outputs,
                                 const at::Tensor& input, std::int64_t root);
[[nodiscard]] std::string scatter(const Communicator& group, const at::Tensor& output,
                                  const std::vector<at::Tensor>& inputs, std::int64_t root);
// "receive(Float [4]) from rank 5": the peer is given as a rank of the job.
[[nodiscard]] std::string message(const Communicator& group, const PointToPoint& message);

}  // namespace d9d::operation
