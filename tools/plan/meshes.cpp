#include "tools/plan/meshes.h"

#include <algorithm>
#include <sstream>

#include "d9d/base/check.h"
#include "d9d/base/config/byte_size.h"
#include "d9d/base/config/record_json.h"

#include "tools/plan/table.h"

namespace d9d::plan {
namespace {

constexpr std::int64_t DeviceMeshParameters::*kDegrees[] = {
    &DeviceMeshParameters::pipeline_parallel,      &DeviceMeshParameters::data_parallel_replicate,
    &DeviceMeshParameters::data_parallel_shard,    &DeviceMeshParameters::context_parallel_replicate,
    &DeviceMeshParameters::context_parallel_shard, &DeviceMeshParameters::tensor_parallel};

// `mesh` with every choice of the degrees from kDegrees[axis] on whose product is `rest`.
void add_meshes(DeviceMeshParameters mesh, std::size_t axis, std::int64_t rest,
                std::vector<DeviceMeshParameters>& meshes) {
  if (axis == std::size(kDegrees)) {
    if (rest == 1) meshes.push_back(mesh);
    return;
  }
  for (std::int64_t degree = 1; degree <= rest; ++degree) {
    if (rest % degree != 0) continue;
    mesh.*kDegrees[axis] = degree;
    add_meshes(mesh, axis + 1, rest / degree, meshes);
  }
}

std::string keys_of(const DeviceMeshParameters& mesh) {
  std::string text;
  for_each_field<DeviceMeshParameters>([&](const auto& field) {
    const std::int64_t degree = mesh.*field.member;
    if (degree > 1) text += cat(text.empty() ? "" : " ", "mesh.", field.name, "=", degree);
  });
  return text.empty() ? "mesh={}" : text;
}

}  // namespace

std::vector<DeviceMeshParameters> meshes_of(std::int64_t num_ranks, bool has_experts) {
  std::vector<DeviceMeshParameters> all;
  add_meshes({}, 0, num_ranks, all);
  if (!has_experts) return all;
  std::vector<DeviceMeshParameters> with_experts;
  for (const DeviceMeshParameters& mesh : all) {
    const std::int64_t num_others = num_ranks / mesh.pipeline_parallel;
    for (std::int64_t degree = 1; degree <= num_others; ++degree) {
      if (num_others % degree != 0) continue;
      with_experts.push_back(mesh);
      with_experts.back().expert_parallel = degree;
    }
  }
  return with_experts;
}

std::vector<MeshMemory> plan_meshes(const Job& job, const Options& options) {
  std::vector<MeshMemory> meshes;
  for (const DeviceMeshParameters& mesh : meshes_of(*options.num_ranks, job.has_experts)) {
    MeshMemory& each = meshes.emplace_back(MeshMemory{.mesh = mesh});
    Job on_mesh = job;
    on_mesh.json["mesh"] = write_record(mesh);
    try {
      each.bytes = most_bytes(plan_job(on_mesh, options));
    } catch (const Error& error) {
      each.refusal = error.what();
    }
  }
  std::ranges::stable_sort(meshes, {},
                           [](const MeshMemory& each) { return std::pair(!each.refusal.empty(), each.bytes); });
  return meshes;
}

std::string meshes_text(const std::vector<MeshMemory>& meshes, const Options& options) {
  std::ostringstream text;
  text << "Meshes of " << *options.num_ranks << " ranks, by what the largest rank needs:\n";
  std::int64_t num_too_large = 0, num_refused = 0;
  const MeshMemory* refused = nullptr;
  for (const MeshMemory& each : meshes) {
    if (!each.refusal.empty()) {
      if (num_refused++ == 0) refused = &each;
    } else if (options.memory && each.bytes > *options.memory) {
      ++num_too_large;
    } else {
      text << "  " << byte_size_text(each.bytes)
           << (options.memory ? cat(", leaves ", byte_size_text(*options.memory - each.bytes)) : "") << ": "
           << keys_of(each.mesh) << '\n';
    }
  }
  if (num_too_large > 0) text << num_too_large << " do not fit in " << byte_size_text(*options.memory) << ".\n";
  if (refused != nullptr) {
    text << num_refused << " are refused, such as " << keys_of(refused->mesh) << ": " << refused->refusal << '\n';
  }
  return text.str();
}

}  // namespace d9d::plan
