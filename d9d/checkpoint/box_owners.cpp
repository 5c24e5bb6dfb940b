#include "d9d/checkpoint/box_owners.h"

#include <algorithm>
#include <ranges>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/dtensor/held_parts.h"

namespace d9d {
namespace {

// Returns the coordinate of mesh.ranks()[index], which are in row-major order.
std::vector<std::int64_t> coordinate_of(std::int64_t index, const DeviceMesh& mesh) {
  std::vector<std::int64_t> coordinate(mesh.axes().size());
  for (std::size_t axis = coordinate.size(); axis-- > 0;) {
    coordinate[axis] = index % mesh.axes()[axis].size;
    index /= mesh.axes()[axis].size;
  }
  return coordinate;
}

using BoxKey = std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>;  // start, sizes

BoxKey key_of(const LocalBox& box) { return {box.start, box.sizes}; }

// Returns the ranks of a job whose coordinate on its axis "pp" is one of `pipeline_ranks`.
std::set<std::int64_t> ranks_at(const std::vector<std::int64_t>& pipeline_ranks, const DeviceMesh& job) {
  const std::vector<std::int64_t> ranks = job.ranks();
  std::set<std::int64_t> result;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (std::ranges::binary_search(pipeline_ranks, pipeline_rank_at(i, job))) result.insert(ranks[i]);
  }
  return result;
}

// Returns, for each box of a tensor, the ranks among `having` that hold the box.
std::map<BoxKey, std::vector<std::int64_t>> holders_of(const DTensor& tensor, const std::set<std::int64_t>& having) {
  std::map<BoxKey, std::vector<std::int64_t>> holders;
  const LocalBox whole = whole_box(tensor.global_shape);
  if (tensor.mesh.axes().empty()) {
    if (whole.numel() > 0) holders[key_of(whole)] = {having.begin(), having.end()};
    return holders;
  }
  const std::vector<std::int64_t> ranks = tensor.mesh.ranks();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (!having.contains(ranks[i])) continue;
    const auto coordinate = coordinate_of(static_cast<std::int64_t>(i), tensor.mesh);
    for (const LocalBox& box : held_boxes(tensor.global_shape, tensor.mesh, tensor.placements, coordinate)) {
      if (box.numel() > 0) holders[key_of(box)].push_back(ranks[i]);
    }
  }
  return holders;
}

}  // namespace

std::vector<OwnedBox> boxes_of_rank(const std::map<std::string, DTensor>& tensors, const JobTensors& all,
                                    const DeviceMesh& job) {
  // Bytes assigned to each rank so far, counted separately for each set of stages that share tensors: a rank does not
  // know the tensors of other stages, so a common count would differ between ranks.
  struct Shares {
    std::set<std::int64_t> ranks;
    std::map<std::int64_t, std::int64_t> bytes_of = {};
  };
  std::map<std::vector<std::int64_t>, Shares> shares_of;  // by JobTensor::pipeline_ranks
  const std::int64_t own_rank = job.ranks()[static_cast<std::size_t>(job.index())];
  std::vector<OwnedBox> owned;
  for (const auto& [name, tensor] : tensors) {
    for (const Placement& placement : tensor.placements) {
      D9D_CHECK(!std::holds_alternative<Partial>(placement), ConfigError, "[checkpoint] expected values in ", name,
                ", got summands of ranks. Reduce it first.");
    }
    const std::vector<std::int64_t>& having = all.at(name).pipeline_ranks;
    const auto known = shares_of.find(having);
    auto& [ranks_having, bytes_of] =
        known != shares_of.end() ? known->second : shares_of[having] = {.ranks = ranks_at(having, job)};
    for (const auto& [key, ranks] : holders_of(tensor, ranks_having)) {
      const std::int64_t owner =
          *std::ranges::min_element(ranks, {}, [&](std::int64_t rank) { return bytes_of[rank]; });
      const LocalBox box{.start = key.first, .sizes = key.second};
      bytes_of[owner] += box.numel() * static_cast<std::int64_t>(tensor.local.element_size());
      if (owner == own_rank) owned.push_back({.tensor = name, .box = box});
    }
  }
  return owned;
}

at::Tensor values_of(const OwnedBox& owned, const DTensor& tensor) {
  const std::vector<HeldPart> held = held_parts(tensor);
  const auto found = std::ranges::find(held, owned.box, &HeldPart::box);
  D9D_ASSERT(found != held.end(), "a rank of " + owned.tensor + " does not hold what it is to write");
  return found->values;
}

}  // namespace d9d
