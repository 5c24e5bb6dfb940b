#include "d9d/loop/measure/memory_plan.h"

#include "d9d/base/config/config_path.h"
#include "d9d/core/communicator/meta/meta_backend.h"
#include "d9d/core/device/meta_memory.h"
#include "d9d/core/device/meta_operators.h"

namespace d9d {

std::int64_t RankMemory::sum_of(std::int64_t StageMemory::*bytes) const {
  std::int64_t sum = 0;
  for (const StageMemory& stage : stages) sum += stage.*bytes;
  return sum;
}

std::int64_t RankMemory::activations() const {
  std::int64_t sum = 0;
  for (const StageMemory& stage : stages) {
    sum += stage.num_live * stage.activations + stage.num_waiting * stage.deferred;
  }
  return sum;
}

std::vector<RankMemory> plan_memory(const MemoryRequest& request, ModelProvider<LanguageModelTypes>& model) {
  request.mesh.validate(ConfigPath{.keys = "mesh"});
  const std::int64_t num_ranks = request.mesh.world_size();
  std::vector<RankMemory> ranks;
  const MetaOperators operators;
  for (std::int64_t i = 0; i < request.mesh.pipeline_parallel; ++i) {
    MetaMemory memory;
    const MemoryMeter meter{.live_bytes = [&] { return memory.live_bytes(); },
                            .peak_bytes = [&] { return memory.peak_bytes(); },
                            .reset_peak = [&] { memory.reset_peak(); }};
    const std::int64_t rank = i * (num_ranks / request.mesh.pipeline_parallel);
    const DistContext context({.mesh = request.mesh,
                               .world = meta_rank(rank, num_ranks),
                               .log_level = LogLevel::kError,
                               .log_sink = [](std::string_view) {}});
    ranks.push_back(measure_memory(context, request, model, meter));
  }
  return ranks;
}

}  // namespace d9d
