#include "d9d/checkpoint/job_tensors.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/fnv1a.h"
#include "d9d/core/collectives/gather.h"

namespace d9d {
namespace {

constexpr const char* kAxis = "pp";
constexpr const char* kSameOnAll = ". Give all ranks the same names, shapes and dtypes.";

nlohmann::json description_of(const std::map<std::string, DTensor>& tensors) {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [name, tensor] : tensors) {
    all[name] = {{"dtype", at::toString(tensor.local.scalar_type())}, {"shape", tensor.global_shape}};
  }
  return all;
}

std::string text_of(const nlohmann::json& description) {
  if (description.is_null()) return "none";
  return cat(description.at("dtype").get<std::string>(), " ",
             at::IntArrayRef(description.at("shape").get<std::vector<std::int64_t>>()));
}

nlohmann::json value_or_null(const nlohmann::json& all, const std::string& name) {
  return all.contains(name) ? all.at(name) : nlohmann::json();
}

// Throws StateError if two ranks have tensors of one name with different shapes or dtypes. `absent_counts`: also throws
// if only one of them has a name.
void check_same(const nlohmann::json& one, std::int64_t its_rank, const nlohmann::json& other, std::int64_t other_rank,
                bool absent_counts) {
  nlohmann::json names = one;
  names.update(other);
  for (const auto& [name, unused] : names.items()) {
    const nlohmann::json first = value_or_null(one, name), second = value_or_null(other, name);
    if (first == second || (!absent_counts && (first.is_null() || second.is_null()))) continue;
    throw StateError(cat("[checkpoint] expected the same tensors on all ranks", absent_counts ? "" : " that have them",
                         ", got ", name, " as ", text_of(first), " on rank ", its_rank, " and ", text_of(second),
                         " on rank ", other_rank, kSameOnAll));
  }
}

// Throws unless ranks with the same coordinate on the axis "pp" have the same tensors. Returns whether all ranks of the
// job have the same tensors.
bool check_stages(const nlohmann::json& own, const DeviceMesh& job) {
  const std::vector<nlohmann::json> hashes = all_gather_object(fnv1a(own.dump()), job);
  std::map<std::int64_t, std::size_t> first_of;  // by pipeline rank
  const auto first_like = [&](std::size_t index) {
    return first_of.try_emplace(pipeline_rank_at(index, job), index).first->second;
  };
  bool are_same = true;
  for (std::size_t i = 0; i < hashes.size(); ++i) are_same &= hashes[i] == hashes[first_like(i)];
  if (are_same) return std::ranges::all_of(hashes, [&](const nlohmann::json& hash) { return hash == hashes.front(); });
  const std::vector<nlohmann::json> all = all_gather_object(own, job);
  const std::vector<std::int64_t> ranks = job.ranks();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t first = first_like(i);
    check_same(all[first], ranks[first], all[i], ranks[i], /*absent_counts=*/true);
  }
  throw InternalError("[bug] tensors of ranks differ by their hashes alone");
}

void add(JobTensors& tensors, const nlohmann::json& of_rank, std::int64_t pipeline_rank) {
  for (const auto& [name, description] : of_rank.items()) {
    JobTensor& tensor = tensors[name];
    tensor.dtype = description.at("dtype").get<std::string>();
    tensor.shape = description.at("shape").get<std::vector<std::int64_t>>();
    tensor.pipeline_ranks.push_back(pipeline_rank);
  }
}

}  // namespace

bool has_pipeline(const DeviceMesh& job) { return job.has_axis(kAxis) && job.axis_size(kAxis) > 1; }

std::int64_t pipeline_rank_at(std::size_t index, const DeviceMesh& job) {
  if (!has_pipeline(job)) return 0;
  auto rest = static_cast<std::int64_t>(index);
  for (std::size_t axis = job.axes().size(); --axis > job.axis_index(kAxis);) rest /= job.axes()[axis].size;
  return rest % job.axis_size(kAxis);
}

JobTensors job_tensors(const std::map<std::string, DTensor>& tensors, const DeviceMesh& job) {
  const nlohmann::json own = description_of(tensors);
  const bool are_same = check_stages(own, job);
  JobTensors result;
  if (are_same) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(has_pipeline(job) ? job.axis_size(kAxis) : 1));
    std::iota(all.begin(), all.end(), 0);
    add(result, own, 0);
    for (auto& [name, tensor] : result) tensor.pipeline_ranks = all;
    return result;
  }
  const DeviceMesh pipeline = job.slice({kAxis});
  const std::vector<nlohmann::json> stages = all_gather_object(own, pipeline);
  const std::int64_t distance = pipeline.ranks()[1] - pipeline.ranks()[0];
  for (std::size_t rank = 0; rank < stages.size(); ++rank) {
    // Errors name the first rank of each stage, so that all ranks throw the same text.
    for (std::size_t before = 0; before < rank; ++before) {
      check_same(stages[before], static_cast<std::int64_t>(before) * distance, stages[rank],
                 static_cast<std::int64_t>(rank) * distance, /*absent_counts=*/false);
    }
    add(result, stages[rank], static_cast<std::int64_t>(rank));
  }
  return result;
}

}  // namespace d9d
