#include "d9d/pipelining/executor/compare_transfers.h"

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/pipelining/executor/announced_transfers.h"

namespace d9d {
void compare_transfers(const DistContext& context, const StagePlacement& placement,
                       const std::map<StageIndex, PipelineStage*>& stages, std::int64_t num_microbatches) {
  nlohmann::json own = {{"microbatches", num_microbatches}};
  for (const auto& [index, stage] : stages) {
    const std::string key = std::to_string(index.value);
    if (index.value > 0) own["in"][key] = announced_transfers(*stage, StageBoundary::kIncoming, num_microbatches).text;
    if (index.value + 1 < placement.num_stages()) {
      own["out"][key] = announced_transfers(*stage, StageBoundary::kOutgoing, num_microbatches).text;
    }
  }
  const auto all = all_gather_object(own, context.mesh(MeshDomain::kRegular).slice({"pp"}));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    D9D_CHECK(all[rank]["microbatches"] == all[0]["microbatches"], StateError,
              "[pipelining::executor] expected as many microbatches on all ranks of a pipeline, got ",
              all[0]["microbatches"].dump(), " on its rank 0 and ", all[rank]["microbatches"].dump(), " on its rank ",
              rank, ". Divide samples by context.data_parallel_rank(), which these ranks share.");
  }
  for (std::int64_t stage = 0; stage + 1 < placement.num_stages(); ++stage) {
    const auto& sent = all[static_cast<std::size_t>(placement.rank_of({stage}))]["out"][std::to_string(stage)];
    const auto& expected =
        all[static_cast<std::size_t>(placement.rank_of({stage + 1}))]["in"][std::to_string(stage + 1)];
    D9D_CHECK(sent == expected, StateError, "[pipelining::executor] expected stage ", stage,
              " to announce the transfer that stage ", stage + 1, " expects, ", expected.get<std::string>(), ", got ",
              sent.get<std::string>(),
              ". Correct the stages' transfers, or the data: all ranks of a pipeline read the ", "same samples.");
  }
}

void compare_programs(const DistContext& context, const std::string& schedule, const std::string& program) {
  const nlohmann::json own = std::hash<std::string>()(program);
  const auto all = all_gather_object(own, context.mesh(MeshDomain::kRegular).slice({"pp"}));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    D9D_CHECK(all[rank] == all[0], StateError, "[pipelining::executor] expected ", schedule,
              " to give all ranks of a pipeline the same program, got another on its rank ", rank,
              " than on its rank 0. Let its order depend on its arguments alone, not on what a rank has measured.");
  }
}

}  // namespace d9d
