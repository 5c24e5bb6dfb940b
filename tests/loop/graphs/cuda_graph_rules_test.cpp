#include "d9d/loop/graphs/cuda_graph_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/normalization/rms_norm.h"
#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/modules/gradient_reduction.h"
#include "d9d/modules/mixed_precision.h"
#include "d9d/modules/module_hook.h"

#include "tests/support/ranks.h"

namespace d9d::cuda_graph_rules_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

TrainerConfig with_graphs() {
  TrainerConfig config;
  config.cuda_graph.emplace();
  return config;
}

TEST(CudaGraphRules, Let_every_job_without_graphs_through) {
  const DistContext context({.world = one_rank_world()});
  EXPECT_NO_THROW(check_cuda_graph(context, TrainerConfig()));
}

TEST(CudaGraphRules, Name_the_device) {
  const DistContext context({.world = one_rank_world()});
  EXPECT_THAT([&] { check_cuda_graph(context, with_graphs()); },
              ThrowsMessage<ConfigError>(
                  StrEq("[loop::cuda_graph] expected a CUDA device for trainer.cuda_graph, got cpu. Set it to null.")));
}

TEST(CudaGraphRules, Name_each_degree_of_the_mesh_that_no_graph_captures) {
  const auto expect_refused = [](const DeviceMeshParameters& mesh, const std::string& text) {
    const DistContext context({.mesh = mesh, .world = test::lone_rank(0, 2), .local_rank = 0});
    EXPECT_THAT([&] { check_cuda_graph(context, with_graphs()); }, ThrowsMessage<ConfigError>(HasSubstr(text)));
  };
  expect_refused({.data_parallel_shard = 2},
                 "mesh.data_parallel_shard = 2 is not built in this version with trainer.cuda_graph. Set the first to "
                 "1, or the second to null.");
  expect_refused({.context_parallel_shard = 2}, "mesh.context_parallel_shard = 2");
  expect_refused({.data_parallel_replicate = 2, .expert_parallel = 2}, "mesh.expert_parallel = 2");
  expect_refused({.data_parallel_replicate = 2}, "expected a CUDA device");
  expect_refused({.pipeline_parallel = 2}, "expected a CUDA device");
}

TEST(CudaGraphRules, Name_a_budget_that_would_offload) {
  const DistContext context({.world = one_rank_world()});
  TrainerConfig config = with_graphs();
  config.memory_budget = {.host = {.bytes = 1 << 30}};
  EXPECT_THAT([&] { check_cuda_graph(context, config); },
              ThrowsMessage<ConfigError>(HasSubstr("expected trainer.memory_budget.host = 0")));
  config.memory_budget->host.bytes = 0;
  EXPECT_THAT([&] { check_cuda_graph(context, config); }, ThrowsMessage<ConfigError>(HasSubstr("a CUDA device")));
}

TEST(CudaGraphRules, Name_a_module_whose_activations_wait_on_the_host) {
  auto module = make_module<RMSNorm>(RMSNormConfig{.hidden_size = 4});
  module->set_activation_checkpointing(true, {.keeps_results = true});
  EXPECT_NO_THROW(check_cuda_graph(with_graphs(), *module));
  module->set_activation_checkpointing(true, {.offloads = true});
  EXPECT_NO_THROW(check_cuda_graph(TrainerConfig(), *module));
  EXPECT_THAT([&] { check_cuda_graph(with_graphs(), *module); },
              ThrowsMessage<ConfigError>(HasSubstr("model_provider.checkpointing.offload")));
}

struct OwnSum final : ModuleHook {
  struct Reduction final : GradientReduction {
    void begin_pass(const StagePass&) override {}
    void end_pass() override {}
    void finish() override {}
    void clear() override {}
    void abandon() override {}
  };
  void before_forward(Module&, const TensorRefs&) override {}
  void after_forward(Module&, const TensorRefs&) override {}
  [[nodiscard]] std::shared_ptr<GradientReduction> gradient_reduction() const override { return reduction; }
  std::shared_ptr<Reduction> reduction = std::make_shared<Reduction>();
};

TEST(CudaGraphRules, Let_master_weights_pass) {
  auto module = make_module<RMSNorm>(RMSNormConfig{.hidden_size = 4});
  module->to(at::kBFloat16);
  keep_parameters_in(module.shared(), at::kFloat);
  EXPECT_NO_THROW(check_cuda_graph(with_graphs(), *module));
}

TEST(CudaGraphRules, Name_the_check_that_waits_for_the_device) {
  TrainerConfig config = with_graphs();
  config.detect_non_finite = true;
  const DistContext context({.world = test::lone_rank(0, 1)});
  EXPECT_THAT([&] { check_cuda_graph(context, config); },
              ThrowsMessage<ConfigError>(HasSubstr("trainer.detect_non_finite, which waits for the device")));
}

TEST(CudaGraphRules, Name_sums_of_gradients_that_the_loop_does_not_make) {
  const auto module = make_module<RMSNorm>(RMSNormConfig{.hidden_size = 4});
  EXPECT_NO_THROW(check_cuda_graph(with_graphs(), *module));
  module->add_hook(std::make_shared<OwnSum>());
  EXPECT_NO_THROW(check_cuda_graph(TrainerConfig(), *module));
  EXPECT_THAT([&] { check_cuda_graph(with_graphs(), *module); },
              ThrowsMessage<ConfigError>(HasSubstr("GradientReduction of its own (FSDP). Take that off")));
}

}  // namespace
}  // namespace d9d::cuda_graph_rules_test
