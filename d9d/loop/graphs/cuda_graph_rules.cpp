#include "d9d/loop/graphs/cuda_graph_rules.h"

#include <algorithm>
#include <string_view>

#include "d9d/base/check.h"
#include "d9d/modules/gradient_reduction.h"

namespace d9d {

void check_cuda_graph(const DistContext& context, const TrainerConfig& config) {
  if (!config.cuda_graph) return;
  for_each_field<DeviceMeshParameters>([&](const auto& field) {
    const std::int64_t degree = context.mesh_parameters().*field.member;
    const bool is_built =
        field.name == "data_parallel_replicate" || field.name == "pipeline_parallel" || field.name == "tensor_parallel";
    D9D_CHECK(degree == 1 || is_built, ConfigError, "[loop::cuda_graph] mesh.", field.name, " = ", degree,
              " is not built in this version with trainer.cuda_graph. Set the first to 1, or the second to null.");
  });
  D9D_CHECK(!config.detect_non_finite, ConfigError,
            "[loop::cuda_graph] expected trainer.detect_non_finite, which waits for the device, without "
            "trainer.cuda_graph. Set the first to false, or the second to null.");
  const bool offloads = config.memory_budget && config.memory_budget->host.bytes > 0;
  D9D_CHECK(!offloads, ConfigError,
            "[loop::cuda_graph] expected trainer.memory_budget.host = 0 with trainer.cuda_graph, which does not copy "
            "activations to the host, got ",
            config.memory_budget->host.bytes, " bytes. Set the first to 0, or the second to null.");
  D9D_CHECK(context.device().is_cuda(), ConfigError,
            "[loop::cuda_graph] expected a CUDA device for trainer.cuda_graph, got ", context.device().str(),
            ". Set it to null.");
}

void check_cuda_graph(const TrainerConfig& config, Module& module) {
  const bool sums = std::ranges::any_of(gradient_reductions(module), &GradientReduction::sums_gradients);
  D9D_CHECK(!config.cuda_graph || !sums, ConfigError,
            "[loop::cuda_graph] expected gradients that the loop sums for trainer.cuda_graph, got a module with a "
            "GradientReduction of its own (FSDP). Take that off, or set trainer.cuda_graph to null.");
  if (!config.cuda_graph) return;
  module.for_each_module([](const std::string&, Module& each) {
    D9D_CHECK(!each.checkpoints_activations() || !each.checkpoint_options().offloads, ConfigError,
              "[loop::cuda_graph] expected no offload of activations with trainer.cuda_graph, which does not copy them "
              "to the host, got that of ",
              each.canonical_name(),
              ". Set model_provider.checkpointing.offload to false, or trainer.cuda_graph to null.");
  });
}

void check_cuda_graph(const TrainerConfig& config, bool has_key) {
  D9D_CHECK(!config.cuda_graph || has_key, ConfigError,
            "[loop::cuda_graph] expected inputs and state of tensors, numbers, strings and enums for "
            "trainer.cuda_graph, got a task with other types. Set trainer.cuda_graph to null.");
}

}  // namespace d9d
