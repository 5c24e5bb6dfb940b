// Chooses which rank writes each box of a tensor into a checkpoint, since several ranks may hold the same box. A box is
// a part of a tensor: a contiguous range in every dimension (LocalBox).
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

// Local. Returns the boxes that this rank writes, sorted by name and box. Together the ranks of `job` write each box of
// each tensor once; boxes that several ranks hold are distributed among them so that each writes about the same number
// of bytes. all: job_tensors(tensors, job). Throws ConfigError for tensors that are partial sums.
[[nodiscard]] std::vector<OwnedBox> boxes_of_rank(const std::map<std::string, DTensor>& tensors, const JobTensors& all,
                                                  const DeviceMesh& job);

// Returns the values of an owned box: a view into the local part of `tensor`, in the box's shape. This rank must hold
// the box.
[[nodiscard]] at::Tensor values_of(const OwnedBox& owned, const DTensor& tensor);

}  // namespace d9d
