// Collects which tensors the ranks of a job have together. Ranks with different coordinates on the axis "pp" of the
// job's mesh have different pipeline stages, and so may have different tensors; all other ranks have the same tensors.
//
// Example
//   const JobTensors all = job_tensors(state.tensors, job);          // the same on all ranks
//   all.at("model.norm.weight").pipeline_ranks                       // {3}: only the last of four stages has it
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "d9d/core/dtensor/dtensor.h"
#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

struct JobTensor {
  std::string dtype;                         // name in LibTorch, such as "Float"
  std::vector<std::int64_t> shape;           // of the whole tensor
  std::vector<std::int64_t> pipeline_ranks;  // coordinates on "pp" of ranks that have it, increasing; {0} without "pp"
};
using JobTensors = std::map<std::string, JobTensor>;  // by name

// Returns the tensors of all ranks. Collective over `job`. `tensors`: those of which this rank has a part. Ranks with
// the same coordinate on the axis "pp" (all ranks, if the mesh lacks it) must have the same names, shapes and dtypes;
// other ranks must agree on the shape and dtype of names that they share. Otherwise throws StateError on all ranks,
// with the same text.
[[nodiscard]] JobTensors job_tensors(const std::map<std::string, DTensor>& tensors, const DeviceMesh& job);

// Local. Returns whether a job has an axis "pp" of several ranks.
[[nodiscard]] bool has_pipeline(const DeviceMesh& job);
// Local. Returns the pipeline rank of job.ranks()[index]: its coordinate on the axis "pp", or 0 without such an axis.
[[nodiscard]] std::int64_t pipeline_rank_at(std::size_t index, const DeviceMesh& job);

}  // namespace d9d
