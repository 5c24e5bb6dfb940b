#include "d9d/parallelism/expert/parallelize_expert_parallel.h"

#include "d9d/parallelism/expert/expert_parallel_dispatcher.h"

namespace d9d {

void parallelize_expert_parallel(MoELayer& layer, const DeviceMesh& expert_mesh, const std::string& shard_axis) {
  layer.set_token_dispatcher(
      std::make_unique<ExpertParallelTokenDispatcher>(layer.config.num_experts, expert_mesh.slice({shard_axis})));
  for (const auto& [name, parameter] : layer.grouped_experts->named_parameters()) {
    parameter->place(expert_mesh, shard_axis, Shard{0}, Shard{0});
  }
}

void parallelize_expert_parallel(Module& module, const DeviceMesh& expert_mesh, const MoELayer::CountRanks& count_ranks,
                                 const std::string& shard_axis) {
  module.for_each_module([&](const std::string&, Module& each) {
    auto* const layer = dynamic_cast<MoELayer*>(&each);
    if (layer == nullptr) return;
    layer->set_count_ranks(count_ranks);
    if (expert_mesh.axis_size(shard_axis) > 1) parallelize_expert_parallel(*layer, expert_mesh, shard_axis);
  });
}

}  // namespace d9d
