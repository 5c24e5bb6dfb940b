#include "d9d/parallelism/tensor/parallelize_tensor_parallel.h"

#include "d9d/modules/gradient_reduction.h"
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

// The memory of copies between ranks. It sums no gradients; it is a GradientReduction in order to be closed where a job
// sleeps or ends.
class ExchangeMemory final : public GradientReduction {
 public:
  explicit ExchangeMemory(std::shared_ptr<SequenceShardedTensorParallelContext> context)
      : context_(std::move(context)) {}

  bool sums_gradients() const override { return false; }
  void begin_pass(const StagePass& /*pass*/) override {}
  void end_pass() override {}
  void finish() override {}
  void clear() override {}
  void abandon() override {}
  void close() override { context_->close(); }
  std::int64_t num_closings() const override { return context_->num_closings(); }

 private:
  std::shared_ptr<SequenceShardedTensorParallelContext> context_;
};

class ExchangeMemoryHook final : public ModuleHook {
 public:
  explicit ExchangeMemoryHook(std::shared_ptr<ExchangeMemory> memory) : memory_(std::move(memory)) {}
  void before_forward(Module& /*module*/, const TensorRefs& /*inputs*/) override {}
  void after_forward(Module& /*module*/, const TensorRefs& /*outputs*/) override {}
  std::shared_ptr<GradientReduction> gradient_reduction() const override { return memory_; }

 private:
  std::shared_ptr<ExchangeMemory> memory_;
};

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
  module.add_hook(std::make_shared<ExchangeMemoryHook>(std::make_shared<ExchangeMemory>(context)));
}

}  // namespace d9d
