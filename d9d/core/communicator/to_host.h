// Copies values that were communicated over a group of ranks to the host.
//
// Example
//   group.all_reduce(failed_rank, ReduceOp::kMax).wait();
//   const auto rank = to_host(failed_rank, group).item<std::int64_t>();
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"

namespace d9d {

// Local. Waits for the device. Throws CommunicationError if the group has failed, since the values are then invalid.
[[nodiscard]] at::Tensor to_host(const at::Tensor& values, Communicator& crossed);

}  // namespace d9d
