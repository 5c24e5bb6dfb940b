// All meshes of a number of ranks, each planned: which of them a job fits on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "d9d/core/mesh/device_mesh_parameters.h"

#include "tools/plan/job.h"

namespace d9d::plan {

struct MeshMemory {
  DeviceMeshParameters mesh = {};
  std::int64_t bytes = 0;    // of the rank that needs most
  std::string refusal = {};  // why the job cannot run on it; empty: it can
};

// The degrees whose product is `num_ranks`, each with every expert_parallel that divides it where the model has experts.
[[nodiscard]] std::vector<DeviceMeshParameters> meshes_of(std::int64_t num_ranks, bool has_experts);

// Those that the job can run on, the least bytes first, then those that it refuses. Of a job's file the batch sizes hold,
// of a model's file each mesh gets twice as many microbatches as it has pipeline ranks, unless `options` has a number.
[[nodiscard]] std::vector<MeshMemory> plan_meshes(const Job& job, const Options& options);

// A line a mesh, with the keys that choose it.
[[nodiscard]] std::string meshes_text(const std::vector<MeshMemory>& meshes, const Options& options);

}  // namespace d9d::plan
