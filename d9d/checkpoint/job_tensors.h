// Which tensors the ranks of a job have together: ranks along the axis "pp" of its mesh (the stages of a pipeline) have
// others, all other ranks the same.
//
// Example
//   const JobTensors all = job_tensors(state.tensors, job);          // the same on all ranks
//   all.at("model.norm.weight").pipeline_ranks                       // {3}: the last of four has it
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "d9d/core/dtensor/dtensor.h"
#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

struct JobTensor {
  std::string dtype;                         // LibTorch's name
  std::vector<std::int64_t> shape;           // of the whole
  std::vector<std::int64_t> pipeline_ranks;  // coordinates on the axis "pp" of those that have it, increasing; or {0}
};
using JobTensors = std::map<std::string, JobTensor>;  // by name

// Collective over `job`. `tensors`: what this rank has a part of. Throws StateError on all ranks, with one text, unless
// ranks with the same coordinate on the axis "pp" (of a mesh without it, all ranks) have the same names, shapes and
// dtypes, and the others the same shapes and dtypes under a name that they share.
[[nodiscard]] JobTensors job_tensors(const std::map<std::string, DTensor>& tensors, const DeviceMesh& job);

// Local. Whether a job has an axis "pp" of several ranks.
[[nodiscard]] bool has_pipeline(const DeviceMesh& job);
// Local. The coordinate on that axis of the rank at `index` of job.ranks(); 0 without it.
[[nodiscard]] std::int64_t pipeline_rank_at(std::size_t index, const DeviceMesh& job);

}  // namespace d9d
