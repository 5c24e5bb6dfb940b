#include "d9d/parallelism/tensor/parallelize_tensor_parallel.h"

#include "d9d/parallelism/exchange/exchange_memory.h"
#include "d9d/parallelism/tensor/sequence_sharded_context.h"

namespace d9d {
namespace {

void place(const TensorPlan::PlacedParameter& placed, const DeviceMesh& mesh, const std::string& axis) {
  if (!placed.parameter) return;
  if (const auto* const shard = std::get_if<Shard>(&placed.placement)) {
    placed.parameter->place(mesh, axis, *shard, *shard);
  } else {
    placed.parameter->place(mesh, axis, Replicate{}, Partial{ReduceOp::kSum});
  }
}

}  // namespace

void parallelize_tensor_parallel(Module& module, const DeviceMesh& mesh, const std::string& axis,
                                 const TensorParallelConfig& config) {
  const auto context = std::make_shared<SequenceShardedTensorParallelContext>(mesh.slice({axis}), config);
  module.for_each_module([&](const std::string&, Module& each) {
    const std::optional<TensorPlan> plan = each.tensor_plan(mesh.axis_size(axis));
    if (!plan) return;
    for (const TensorPlan::PlacedParameter& placed : plan->parameters) place(placed, mesh, axis);
    each.set_tensor_parallel_context(context);
  });
  add_exchange_memory(module, context->memory());
}

}  // namespace d9d
