// The totals of a step over ranks that share a loss (tensor parallelism) and ranks that add to it (data parallelism).
#include "d9d/loop/component/gradient_manager.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/modules/blocks/normalization/rms_norm.h"

#include "tests/support/ranks.h"

namespace d9d::test {
namespace {

// One step on each rank of dp = 2, tp = 2, with one microbatch of weight `weights[dp]`; `visit` sees what it reports.
void run_steps(const std::function<RankReport(const DistContext&)>& report,
               const std::function<void(const StepGradients&)>& visit, const std::array<double, 2>& weights = {1, 3}) {
  run_ranks(RankBackend::kThreads, 4, [&](World& world) {
    const DistContext context({.mesh = {.data_parallel_replicate = 2, .tensor_parallel = 2},
                               .world = borrowed(world),
                               .local_rank = world.rank()});
    const auto module = make_module<RMSNorm>(RMSNormConfig{.hidden_size = 4});
    module->materialize(at::kCPU);
    module->reset_parameters(/*base_seed=*/1);
    GradientManager gradients(context, *module, {}, {});
    gradients.begin_microbatch(/*is_last=*/true);
    const auto rank = static_cast<std::size_t>(context.data_parallel_rank());
    const double weight = weights[rank];
    const at::Tensor loss = module(at::ones({1, 4})).sum() * (rank == 0 ? 1.0 : 3.0);
    gradients.add_loss_with_weight(loss, at::scalar_tensor(weight));
    (loss * weight).backward();
    gradients.end_microbatch();
    visit(gradients.finish_step(report(context)));
  });
}

TEST(GradientManager, Counts_a_loss_that_tensor_parallel_ranks_share_once) {
  run_steps([](const DistContext&) { return RankReport{.num_tokens = 5}; },
            [](const StepGradients& step) {
              EXPECT_EQ(step.total_weight, 1.0 + 3.0);
              EXPECT_EQ(step.num_tokens, 10);
              EXPECT_NEAR(step.loss, (4.0 * 1 + 12.0 * 3) / 4.0, 1e-4);
            });
}

TEST(GradientManager, Leaves_out_ranks_whose_losses_weigh_nothing) {
  const auto nothing = [](const DistContext&) { return RankReport(); };
  run_steps(nothing,
            [](const StepGradients& step) {
              EXPECT_TRUE(step.is_usable);
              EXPECT_EQ(step.total_weight, 3.0);
              EXPECT_NEAR(step.loss, 12.0, 1e-4);
            },
            {0, 3});
  run_steps(nothing,
            [](const StepGradients& step) {
              EXPECT_FALSE(step.is_usable);
              EXPECT_TRUE(step.is_finite);
              EXPECT_EQ(step.reason, "its total loss weight is 0");
            },
            {0, 0});
}

TEST(GradientManager, Stops_all_ranks_when_any_one_wants_to) {
  for (std::int64_t who = 0; who < 4; ++who) {
    run_steps([who](const DistContext& context) { return RankReport{.wants_to_stop = context.rank() == who}; },
              [who](const StepGradients& step) { EXPECT_TRUE(step.stops) << who; });
  }
}

}  // namespace
}  // namespace d9d::test
