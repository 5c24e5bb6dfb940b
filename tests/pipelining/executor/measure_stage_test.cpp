// The measured costs of a stage are those of a run of the executor: the same computations, and the same memory.
#include "d9d/pipelining/executor/measure_stage.h"

#include <array>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "d9d/core/device/allocated_bytes.h"
#include "d9d/pipelining/executor/measure_links.h"
#include "d9d/pipelining/executor/message_layout.h"
#include "d9d/pipelining/executor/pipeline_executor.h"

#include "tests/pipelining/executor/toy_part.h"

namespace d9d::test::measure_stage_test {
namespace {

constexpr std::int64_t kNumStages = 3;
const ToyShape kShape{.num_stages = kNumStages, .num_microbatches = 4};

// The inputs of a stage for microbatch 0.
std::vector<at::Tensor> arrived_at(const ToyNetwork& network, std::int64_t stage) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> leaves;
  for (std::int64_t i = 0; i < stage; ++i) leaves = ToyStage(network, {i}).forward({0}, leaves, true);
  return leaves;
}

StageSample sample_of(const ToyNetwork& network, std::int64_t stage) {
  return {.arrived = arrived_at(network, stage), .is_last = stage + 1 == kNumStages, .num_repeats = 2};
}

StageCosts measured(std::int64_t index) {
  const ToyNetwork network(kShape);
  ToyStage stage(network, {index});
  return measure_stage(stage, sample_of(network, index));
}

// F and I of each microbatch, then all W; or all F, then all B. Each rank has one stage.
PipelineSchedule schedule_that(bool splits) {
  return {.name = "measured",
          .placement = [](std::int64_t num_ranks) { return StagePlacement::loop(num_ranks, 1); },
          .order =
              [=](const StagePlacement&, std::int64_t rank, std::int64_t num_microbatches) {
                const StageIndex stage{rank};
                RankProgram order;
                for (std::int64_t i = 0; i < num_microbatches; ++i) {
                  order.emplace_back(ForwardAction{stage, {i}});
                  if (splits) order.emplace_back(BackwardInputAction{stage, {i}});
                }
                for (std::int64_t i = 0; i < num_microbatches; ++i) {
                  if (splits) order.emplace_back(BackwardWeightAction{stage, {i}});
                  if (!splits) order.emplace_back(BackwardAction{stage, {i}});
                }
                return order;
              }};
}

// The bytes that each stage keeps of microbatch 0 when it begins the forward of microbatch 1.
std::vector<std::int64_t> kept_in_run(bool splits) {
  std::vector<std::int64_t> kept(kNumStages);
  run_ranks(RankBackend::kThreads, kNumStages, [&](World& world) {
    const DistContext context = context_of(world);
    PipelineExecutor executor(context, schedule_that(splits));
    const ToyNetwork network(kShape);
    ToyStage stage(network, {world.rank()});
    const AllocatedBytes allocated(at::kCPU);
    std::vector<std::int64_t> at_forward;
    stage.on_forward = [&](StageIndex, MicrobatchIndex) { at_forward.push_back(allocated.now()); };
    executor.run({&stage}, kShape.num_microbatches);
    // A message is received before its forward begins, so its bytes are included.
    const auto bytes_of = [&](std::int64_t microbatch) {
      return world.rank() == 0 ? 0 : message_bytes(stage.transfer({microbatch}, StageBoundary::kIncoming));
    };
    kept[static_cast<std::size_t>(world.rank())] = (at_forward[1] - bytes_of(1)) - (at_forward[0] - bytes_of(0));
  });
  return kept;
}

TEST(MeasureStage, Keeps_the_bytes_that_a_run_of_the_executor_keeps) {
  const auto until_backward = kept_in_run(/*splits=*/false), until_weights = kept_in_run(/*splits=*/true);
  for (std::int64_t stage = 0; stage < kNumStages; ++stage) {
    const StageCosts costs = measured(stage);
    const auto index = static_cast<std::size_t>(stage);
    EXPECT_GT(costs.activation_bytes, 0);
    EXPECT_EQ(costs.activation_bytes, static_cast<double>(until_backward[index])) << stage;
    EXPECT_GT(costs.deferred_bytes, 0);
    EXPECT_EQ(costs.deferred_bytes, static_cast<double>(until_weights[index])) << stage;
  }
}

TEST(MeasureStage, Runs_each_pass_as_often_as_asked_once_before_and_once_for_memory) {
  const ToyNetwork network(kShape);
  ToyStage stage(network, {1});
  std::int64_t num_forwards = 0, num_before = 0;
  std::array<std::int64_t, 3> num_backwards = {};
  stage.on_forward = [&](StageIndex, MicrobatchIndex microbatch) {
    EXPECT_EQ(microbatch, MicrobatchIndex{0});
    ++num_forwards;
  };
  stage.on_backward = [&](StageIndex, MicrobatchIndex, BackwardPart part) {
    ++num_backwards[static_cast<std::size_t>(part)];
  };
  StageSample sample = sample_of(network, 1);
  sample.num_repeats = 3;
  sample.before_forward = [&] { EXPECT_EQ(num_before++, num_forwards); };
  const std::vector<at::Tensor> arrived = sample.arrived;
  const at::Tensor before = arrived[0].clone();
  const StageCosts costs = measure_stage(stage, sample);
  EXPECT_EQ(num_forwards, 4 + 4 + 1);
  EXPECT_EQ(num_before, num_forwards);
  EXPECT_EQ(num_backwards, (std::array<std::int64_t, 3>{4, 5, 5}));  // B, I, W
  EXPECT_FALSE(stage.is_complete);
  EXPECT_EQ(stage.num_live(), 0);
  EXPECT_TRUE(at::equal(arrived[0], before));
  EXPECT_FALSE(arrived[0].requires_grad());
  for (const double seconds : {costs.forward, costs.backward, costs.backward_input, costs.backward_weight}) {
    EXPECT_TRUE(std::isfinite(seconds) && seconds > 0) << seconds;
  }
}

TEST(MeasureStage, A_pass_keeps_what_its_parts_keep_and_needs_more_while_it_runs) {
  const ToyNetwork network(kShape);
  ToyStage stage(network, {1});
  const StageCosts costs = measured(1);
  for (const bool is_split : {false, true}) {
    const PassCosts pass =
        measure_pass(stage, sample_of(network, 1), {.is_split = is_split, .backward_follows = false});
    EXPECT_GT(pass.seconds, 0);
    EXPECT_EQ(pass.activation_bytes, costs.activation_bytes);
    EXPECT_EQ(pass.deferred_bytes, is_split ? costs.deferred_bytes : 0);
    EXPECT_GT(pass.peak_bytes, pass.activation_bytes);
    EXPECT_GE(pass.allocated_bytes, pass.activation_bytes);
    EXPECT_EQ(pass.host_bytes, 0);
  }
}

TEST(MeasureStage, A_stage_whose_gradients_cannot_wait_keeps_nothing_from_I_to_W) {
  ToyShape shape = kShape;
  shape.num_frozen = kNumStages;
  const ToyNetwork network(shape);
  ToyStage stage(network, {1});
  EXPECT_EQ(measure_stage(stage, sample_of(network, 1)).deferred_bytes, 0);
}

TEST(MeasureStage, A_composed_forward_begins_when_the_backward_beside_it_is_issued) {
  const ToyNetwork network(kShape);
  ToyStage first(network, {0}), last(network, {2});
  std::vector<std::string> order;
  for (ToyStage* const stage : {&first, &last}) {
    stage->on_forward = [&](StageIndex index, MicrobatchIndex) { order.push_back(cat(index.value, "F")); };
    stage->on_backward = [&](StageIndex index, MicrobatchIndex, BackwardPart part) {
      EXPECT_EQ(part, BackwardPart::kWhole);
      order.push_back(cat(index.value, "B"));
    };
  }
  StageSample of_first = sample_of(network, 0), of_last = sample_of(network, 2);
  of_first.before_forward = [&] { order.push_back("build"); };
  of_first.num_repeats = 1;
  EXPECT_GT(measure_composed({last, of_last}, {first, of_first}, nullptr), 0);
  const std::vector<std::string> once{"build", "0F", "0B", "2F", "2B"};
  std::vector<std::string> twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  EXPECT_EQ(order, twice);
  EXPECT_EQ(first.num_live() + last.num_live(), 0);
}

TEST(MeasureLinks, Each_rank_but_the_last_measures_the_link_to_the_next) {
  for (const RankBackend backend : {RankBackend::kThreads, RankBackend::kGloo}) {
    run_ranks(backend, 3, [&](World& world) {
      const DistContext context = context_of(world);
      const auto transfer = [](std::int64_t rank) {  // differs from link to link
        return std::vector{at::empty({rank + 1, 7}, at::TensorOptions(at::kMeta).dtype(at::kDouble)),
                           at::empty({3}, at::TensorOptions(at::kMeta).dtype(at::kLong))};
      };
      LinkSample sample;
      if (world.rank() > 0) sample.from_before = transfer(world.rank() - 1);
      if (world.rank() < 2) sample.to_next = transfer(world.rank());
      const LinkCosts costs = measure_links(context, {}, sample);
      EXPECT_EQ(costs.latency > 0, world.rank() < 2);
      EXPECT_GE(costs.time, 0);
      PipelineExecutor executor(context, schedule_that(false));  // links can be opened again
      const ToyNetwork network(kShape);
      ToyStage stage(network, {world.rank()});
      executor.run({&stage}, kShape.num_microbatches);
    });
  }
}

}  // namespace
}  // namespace d9d::test::measure_stage_test
