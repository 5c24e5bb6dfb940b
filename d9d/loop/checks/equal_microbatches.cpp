#include "d9d/loop/checks/equal_microbatches.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"

namespace d9d {
namespace {

// Returns the ranks that together hold all parts of a parameter.
DeviceMesh ranks_of_parts(const Parameter& parameter) {
  std::vector<std::string> axes;
  for (std::size_t i = 0; i < parameter.placements().size(); ++i) {
    const Placement& placement = parameter.placements()[i];
    const bool is_cut = std::holds_alternative<Shard>(placement) || std::holds_alternative<FlatShard>(placement);
    if (is_cut) axes.push_back(parameter.mesh().axes()[i].name);
  }
  return parameter.mesh().slice(axes);
}

}  // namespace

EqualMicrobatches::EqualMicrobatches(const DistContext& context, const Module& module)
    : ranks_(context.mesh(MeshDomain::kBatch)) {
  const auto depend = [&](const DeviceMesh& group, const std::string& why) {
    if (group.num_ranks() > 1) own_firsts_.try_emplace(group.ranks().front(), why);
  };
  depend(ranks_.slice({"pp", "cp", "tp"}), "compute each microbatch together");
  for (const auto& [name, parameter] : module.named_parameters()) {
    depend(ranks_of_parts(*parameter), "hold parts of " + name);
  }
}

std::vector<std::int64_t> EqualMicrobatches::gather(std::int64_t own) {
  nlohmann::json entry = {{"own", own}};
  if (firsts_.empty()) {
    entry["firsts"] = nlohmann::json::array();
    for (const auto& [first, why] : own_firsts_) entry["firsts"].push_back({first, why});
  }
  std::vector<std::int64_t> of_ranks;
  std::vector<Firsts> firsts;
  for (const nlohmann::json& each : all_gather_object(entry, ranks_)) {
    of_ranks.push_back(each.at("own").get<std::int64_t>());
    if (!firsts_.empty()) continue;
    firsts.emplace_back();
    for (const nlohmann::json& first : each.at("firsts")) {
      firsts.back().emplace(first.at(0).get<std::int64_t>(), first.at(1).get<std::string>());
    }
  }
  if (firsts_.empty()) firsts_ = std::move(firsts);
  return of_ranks;
}

void EqualMicrobatches::check(std::int64_t step, std::int64_t own) {
  std::vector<std::int64_t> of_ranks = std::exchange(next_, {});
  const bool is_known = !firsts_.empty() && !of_ranks.empty() && !std::ranges::count(of_ranks, 0);
  if (!is_known) of_ranks = gather(own);
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    D9D_CHECK(of_ranks[rank] > 0, StateError, "[loop::data] expected a microbatch on every rank in step ", step,
              ", got none on rank ", rank, ". Give each rank at least one, if need be with the loss weight 0.");
  }
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    for (const auto& [first, why] : firsts_[rank]) {
      const std::int64_t of_first = of_ranks[static_cast<std::size_t>(first)];
      D9D_CHECK(of_ranks[rank] == of_first, StateError, "[loop::data] expected as many microbatches on all ranks that ",
                why, ", got ", of_first, " on rank ", first, " and ", of_ranks[rank], " on rank ", rank, " in step ",
                step,
                ". Give these ranks equally many, if need be with the loss weight 0. Ranks of a pipeline, and of "
                "context and tensor parallelism, need the same ones: divide samples by context.data_parallel_rank().");
    }
  }
}

}  // namespace d9d
