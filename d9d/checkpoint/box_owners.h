// Who writes what: every element of a tensor that several ranks hold is written by one of them.
//
// Example
//   for (const OwnedBox& each : boxes_of_rank(state.tensors, job_mesh)) write(each.tensor, each.box, each.values);
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "d9d/core/dtensor/box_intersection.h"
#include "d9d/core/dtensor/dtensor.h"

namespace d9d {

struct OwnedBox {
  std::string tensor;
  LocalBox box;       // in the whole tensor
  at::Tensor values;  // of the box's shape: a view of the rank's part
};

// Local. The boxes that this rank writes, by name and box. Together the ranks of `job` write each box of each tensor
// once; boxes that several ranks hold are shared out among them by bytes. Throws ConfigError for partial sums.
[[nodiscard]] std::vector<OwnedBox> boxes_of_rank(const std::map<std::string, DTensor>& tensors, const DeviceMesh& job);

}  // namespace d9d
