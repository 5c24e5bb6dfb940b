// The totals of a step over ranks that share a loss (tensor parallelism) and ranks that contribute to it (data
// parallelism).
#include "d9d/loop/step/gradient_manager.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/normalization/rms_norm.h"
#include "d9d/parallelism/fsdp/parallelize_fsdp.h"

#include "tests/loop/step/idle_optimizer.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/ranks.h"

namespace d9d::test::gradient_manager_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Runs one step on each rank of dp = 2, tp = 2, with one microbatch of weight `weights[dp]`; `visit` gets its result.
void run_steps(const std::function<RankReport(const DistContext&)>& report,
               const std::function<void(const StepTotals&)>& visit, const std::array<double, 2>& weights = {1, 3}) {
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
    visit(gradients.reduce_and_clip(report(context)));
  });
}

TEST(GradientManager, Counts_a_loss_that_tensor_parallel_ranks_share_once) {
  run_steps([](const DistContext&) { return RankReport{.num_tokens = 5}; },
            [](const StepTotals& step) {
              EXPECT_EQ(step.total_weight, 1.0 + 3.0);
              EXPECT_EQ(step.num_tokens, 10);
              EXPECT_NEAR(step.loss, (4.0 * 1 + 12.0 * 3) / 4.0, 1e-4);
            });
}

class Pair : public Module {
 public:
  at::Tensor forward(std::int64_t which, const at::Tensor& x) const { return which == 0 ? first(x) : second(x); }

  const ModulePtr<RMSNorm> first = register_module<RMSNorm>("first", RMSNormConfig{.hidden_size = 4});
  const ModulePtr<RMSNorm> second = register_module<RMSNorm>("second", RMSNormConfig{.hidden_size = 4});
};

// Two sharded layers have the same shape, and each rank runs another one; copies of slices are not checked.
TEST(GradientManager, Refuses_a_step_whose_ranks_ran_other_sharded_modules) {
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const DistContext context(
        {.mesh = {.data_parallel_shard = 2}, .world = borrowed(world), .local_rank = world.rank()});
    const auto pair = make_module<Pair>();
    const auto fsdp = std::make_shared<FsdpRuntime>(
        FsdpConfig{.gather = ExchangeMethod::kCopyEngine, .reduce = ExchangeMethod::kCopyEngine});
    for (const auto& [name, child] : pair->named_children()) {
      parallelize_fsdp(fsdp, {.name = name,
                              .modules = {child},
                              .axes = {{.mesh = context.mesh(MeshDomain::kDense), .shard_axis = "dp_cp_shard"}}});
    }
    pair->materialize(at::kCPU);
    pair->reset_parameters(/*base_seed=*/1);
    GradientManager gradients(context, *pair, {}, {});
    gradients.begin_microbatch(/*is_last=*/true);
    const at::Tensor loss = pair(world.rank(), at::ones({1, 4})).sum();
    gradients.add_loss_with_weight(loss, at::ones({}));
    loss.backward();
    gradients.end_microbatch();
    const auto grad_scale = std::make_shared<at::Tensor>();
    Optimizer optimizer{IdleOptimizer(grad_scale)};
    EXPECT_THAT(
        [&] { (void)gradients.apply(optimizer, /*learning_rate=*/0.0); },
        ThrowsMessage<StateError>(HasSubstr("expected all ranks to gather and reduce the same sharded modules")));
    EXPECT_TRUE(std::isnan(grad_scale->item<double>()));
  });
}

TEST(GradientManager, Refuses_sharded_modules_of_several_runtimes) {
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const DistContext context(
        {.mesh = {.data_parallel_shard = 2}, .world = borrowed(world), .local_rank = world.rank()});
    const auto pair = make_module<Pair>();
    for (const auto& [name, child] : pair->named_children()) {
      parallelize_fsdp(std::make_shared<FsdpRuntime>(FsdpConfig{}),
                       {.name = name,
                        .modules = {child},
                        .axes = {{.mesh = context.mesh(MeshDomain::kDense), .shard_axis = "dp_cp_shard"}}});
    }
    pair->materialize(at::kCPU);
    EXPECT_THAT([&] { GradientManager(context, *pair, {}, {}); },
                ThrowsMessage<ConfigError>(HasSubstr("expected one FsdpRuntime")));
  });
}

TEST(GradientManager, Leaves_out_ranks_whose_losses_weigh_nothing) {
  const auto nothing = [](const DistContext&) { return RankReport(); };
  run_steps(nothing,
            [](const StepTotals& step) {
              EXPECT_TRUE(step.is_usable);
              EXPECT_EQ(step.total_weight, 3.0);
              EXPECT_NEAR(step.loss, 12.0, 1e-4);
            },
            {0, 3});
  run_steps(nothing,
            [](const StepTotals& step) {
              EXPECT_FALSE(step.is_usable);
              EXPECT_TRUE(step.is_finite);
              EXPECT_EQ(step.reason, "its total loss weight is 0");
            },
            {0, 0});
}

TEST(GradientManager, Adds_up_the_numbers_of_all_ranks) {
  run_steps(
      [](const DistContext& context) {
        return RankReport{.numbers = {static_cast<double>(context.rank()), 0.0, context.rank() == 2 ? 5.0 : 0.0}};
      },
      [](const StepTotals& step) { EXPECT_THAT(step.numbers, ElementsAre(0.0 + 1 + 2 + 3, 0, 5)); });
}

// The dtype of the gradient of a bfloat16 FSDP parameter after a step.
c10::ScalarType dtype_of_sharded_gradient(World& world, const FsdpConfig& fsdp,
                                          const std::vector<std::optional<Dtype>>& grad_dtypes) {
  const DistContext context({.mesh = {.data_parallel_shard = 2}, .world = borrowed(world), .local_rank = world.rank()});
  const auto module = make_module<RMSNorm>(RMSNormConfig{.hidden_size = 300});
  module->to(at::kBFloat16);
  parallelize_fsdp(std::make_shared<FsdpRuntime>(fsdp),
                   {.name = "norm",
                    .modules = {module.shared()},
                    .axes = {{.mesh = context.mesh(MeshDomain::kDense), .shard_axis = "dp_cp_shard"}}});
  module->materialize(at::kCPU);
  module->reset_parameters(/*base_seed=*/1);
  at::Tensor gradient;
  for (const std::optional<Dtype> grad_dtype : grad_dtypes) {  // one manager after another
    GradientManager gradients(context, *module, {.grad_dtype = grad_dtype}, {});
    for (const bool is_last : {false, true}) {
      gradients.begin_microbatch(is_last);
      const at::Tensor loss = module(at::ones({1, 300}, at::kBFloat16)).sum();
      gradients.add_loss_with_weight(loss, at::ones({}));
      loss.backward();
      gradients.end_microbatch();
    }
    Optimizer optimizer{IdleOptimizer()};
    (void)gradients.apply(optimizer, /*learning_rate=*/0.0);
    gradient = module->weight->stored().grad();
    EXPECT_TRUE(gradient.eq(4).all().item<bool>());  // sum over two ranks and two microbatches
    gradients.reset();
    gradients.close();
  }
  return gradient.scalar_type();
}

TEST(GradientManager, Sums_in_its_dtype_what_is_sharded_unless_fsdp_names_another) {
  struct Case {
    std::optional<Dtype> of_manager, of_fsdp;
    c10::ScalarType expected;
  };
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    for (const auto& [of_manager, of_fsdp, expected] :
         {Case{{}, {}, at::kFloat}, Case{Dtype::kBFloat16, {}, at::kBFloat16}, Case{Dtype::kFloat64, {}, at::kDouble},
          Case{{}, Dtype::kBFloat16, at::kBFloat16}, Case{Dtype::kBFloat16, Dtype::kFloat32, at::kFloat}}) {
      for (const bool reduces_once : {false, true}) {
        const FsdpConfig fsdp{.gradient_dtype = of_fsdp, .reduce_on_last_microbatch = reduces_once};
        EXPECT_EQ(dtype_of_sharded_gradient(world, fsdp, {of_manager}), expected);
      }
    }
    EXPECT_EQ(dtype_of_sharded_gradient(world, {}, {std::nullopt, Dtype::kBFloat16}), at::kBFloat16);
  });
}

// Behaves like NCCL after a peer has died: the operation leaves arbitrary values, and throw_if_failed() reports the
// cause.
struct AbortedCommunicator : ForwardingCommunicator {
  using ForwardingCommunicator::ForwardingCommunicator;
  [[nodiscard]] Work all_reduce(const at::Tensor& tensor, ReduceOp) override {
    tensor.fill_(garbage);
    return {};
  }
  void throw_if_failed() override { throw CommunicationError("rank 1 is gone"); }
  static inline double garbage = 0.0;
};

TEST(GradientManager, Reports_a_failed_communication_and_not_the_loss_that_it_left) {
  for (const double garbage : {5.88204e+18, std::numeric_limits<double>::quiet_NaN(), 0.0}) {
    AbortedCommunicator::garbage = garbage;
    const auto thread = lone_rank(0, 2);
    const DistContext context(
        {.mesh = {.data_parallel_replicate = 2}, .world = world_of<AbortedCommunicator>(*thread)});
    const auto module = make_module<RMSNorm>(RMSNormConfig{.hidden_size = 4});
    module->materialize(at::kCPU);
    module->reset_parameters(/*base_seed=*/1);
    GradientManager gradients(context, *module, {}, {.on_non_finite = NonFinitePolicy::kSkip});
    gradients.begin_microbatch(/*is_last=*/true);
    const at::Tensor loss = module(at::ones({1, 4})).sum();
    gradients.add_loss_with_weight(loss, at::ones({}));
    loss.backward();
    gradients.end_microbatch();
    EXPECT_THAT([&] { (void)gradients.reduce_and_clip({}); },
                ::testing::ThrowsMessage<CommunicationError>("rank 1 is gone"));
  }
}

}  // namespace
}  // namespace d9d::test::gradient_manager_test
