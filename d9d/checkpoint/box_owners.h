// Who writes what: every element of a tensor that several ranks hold is written by one of them.
//
// Example
//   const JobTensors all = job_tensors(tensors, job);
//   for (const OwnedBox& each : boxes_of_rank(tensors, all, job)) write(values_of(each, tensors.at(each.tensor)));
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "d9d/checkpoint/job_tensors.h"
#include "d9d/core/dtensor/box_intersection.h"
#include "d9d/core/dtensor/dtensor.h"

namespace d9d {

struct OwnedBox {
  std::string tensor;
  LocalBox box;  // in the whole tensor
};

// Local. The boxes that this rank writes, by name and box. Together the ranks of `job` write each box of each tensor
// once; boxes that several ranks hold are shared out among them by bytes. all: job_tensors() of them. Throws
// ConfigError for partial sums.
[[nodiscard]] std::vector<OwnedBox> boxes_of_rank(const std::map<std::string, DTensor>& tensors, const JobTensors& all,
                                                  const DeviceMesh& job);

// Its values in `tensor`, of which this rank holds the box: a view of the box's shape.
[[nodiscard]] at::Tensor values_of(const OwnedBox& owned, const DTensor& tensor);

}  // namespace d9d
