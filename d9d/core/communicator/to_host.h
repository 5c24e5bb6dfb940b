// Values that crossed a group of ranks, on the host.
//
// Example
//   group.all_reduce(failed_rank, ReduceOp::kMax).wait();
//   const auto rank = to_host(failed_rank, group).item<std::int64_t>();
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"

namespace d9d {

// Waits for the device. Local. Throws CommunicationError where the group has failed, since the values are then none.
[[nodiscard]] at::Tensor to_host(const at::Tensor& values, Communicator& crossed);

}  // namespace d9d
