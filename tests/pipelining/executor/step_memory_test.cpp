// The peak memory of each rank in a step is what the simulation of its program predicts from measured costs.
//
// The peak counts what the executor, its links, the stages and autograd allocate on the rank's thread in a step after
// the first, including temporaries of computations and waiting messages. It does not count weights, their gradients and
// inboxes, which are allocated before.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/pipelining/executor/measure_stage.h"
#include "d9d/pipelining/executor/pipeline_executor.h"
#include "d9d/pipelining/simulator/choose_schedule.h"
#include "d9d/pipelining/simulator/memory.h"

#include "tests/pipelining/executor/toy_part.h"
#include "tests/support/memory_peak.h"
#include "tests/support/tolerances.h"

namespace d9d::test::step_memory_test {
namespace {

constexpr std::int64_t kNumMicrobatches = 8, kNumLayers = 96, kRows = 64, kWidth = 8;

// Layers y = tanh(sin(... x w)), so many that the temporaries of one layer hardly count. W needs two tensors of each
// layer, B needs one and another for each sine: on some stages a microbatch keeps more before I, on others after it.
// The output of a stage is a sixteenth of a layer's output.
class DeepStage final : public PipelineStage {
 public:
  DeepStage(StageIndex index, std::int64_t num_stages)
      : index_(index.value), is_last_(index.value + 1 == num_stages), num_layers_(kNumLayers + 16 * (index_ % 3)) {
    for (std::int64_t i = 0; i < num_layers_; ++i) {
      weights_.push_back(toy_values(i, kWidth, kWidth, at::kCPU).set_requires_grad(true));
      weights_.back().mutable_grad() = at::zeros({kWidth, kWidth}, at::kDouble);
    }
  }

  std::vector<at::Tensor> transfer(MicrobatchIndex, StageBoundary) const override {
    return {at::empty({kRows / 16, kWidth}, at::TensorOptions(at::kMeta).dtype(at::kDouble))};
  }
  std::vector<at::Tensor> forward(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived, bool) override {
    at::Tensor x = arrived.empty() ? toy_values(microbatch.value, kRows, kWidth, at::kCPU) : arrived[0].repeat({16, 1});
    for (const at::Tensor& weight : weights_) {
      x = ToyProduct::apply(x, weight);
      for (std::int64_t i = 0; i < index_ % 4; ++i) x = at::sin(x);
      x = at::tanh(x);
    }
    if (is_last_) return {x.square().mean()};
    return {x.view({16, kRows / 16, kWidth}).sum(0)};
  }
  std::vector<at::Tensor> weights() const override { return weights_; }

 private:
  const std::int64_t index_;
  const bool is_last_;
  const std::int64_t num_layers_;
  std::vector<at::Tensor> weights_;
};

// Costs as the auto schedule measures them. Times are units, since the memory of a rank does not depend on them.
PipelineCosts measured(std::int64_t num_stages) {
  PipelineCosts costs;
  for (std::int64_t i = 0; i < num_stages; ++i) {
    DeepStage stage({i}, num_stages);
    StageSample sample{.is_last = i + 1 == num_stages, .num_repeats = 1};
    if (i > 0) sample.arrived = {toy_values(i, kRows / 16, kWidth, at::kCPU)};
    const StageCosts of_stage = measure_stage(stage, sample);
    costs.stages.push_back({.activation_bytes = of_stage.activation_bytes, .deferred_bytes = of_stage.deferred_bytes});
  }
  return costs;
}

std::vector<std::int64_t> peaks_of_run(const PipelineSchedule& schedule, std::int64_t num_ranks) {
  std::vector<std::int64_t> peaks(static_cast<std::size_t>(num_ranks));
  run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
    const DistContext context = context_of(world);
    PipelineExecutor executor(context, schedule);
    std::vector<std::unique_ptr<DeepStage>> stages;
    std::vector<PipelineStage*> borrowed_stages;
    for (const StageIndex index : executor.stages()) {
      stages.push_back(std::make_unique<DeepStage>(index, executor.placement().num_stages()));
      borrowed_stages.push_back(stages.back().get());
    }
    executor.run(borrowed_stages, kNumMicrobatches);
    const MemoryPeak memory;
    executor.run(borrowed_stages, kNumMicrobatches);
    peaks[static_cast<std::size_t>(world.rank())] = memory.peak_bytes();
    EXPECT_EQ(memory.live_bytes(), 0);
  });
  return peaks;
}

TEST(StepMemory, Each_rank_keeps_what_the_simulation_of_measured_stages_says_in_every_schedule) {
  const double within = tolerance("simulated peak").value;
  std::map<std::int64_t, PipelineCosts> costs_of;  // keyed by the number of stages
  for (const std::int64_t num_ranks : {2, 4}) {
    for (const PipelineScheduleConfig& config : training_schedules(/*max_stages_per_rank=*/2)) {
      const PipelineSchedule schedule = schedule_of(config);
      const PipelineProgram program = build_program(schedule, num_ranks, kNumMicrobatches);
      const std::int64_t num_stages = program.stages.num_stages();
      SCOPED_TRACE(cat(schedule.name, " of ", num_stages, " stages on ", num_ranks, " ranks"));
      if (!costs_of.contains(num_stages)) costs_of[num_stages] = measured(num_stages);
      const PipelineCosts& costs = costs_of[num_stages];
      const Simulation run = simulate(program, {.costs = costs});
      const std::vector<std::int64_t> peaks = peaks_of_run(schedule, num_ranks);
      for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
        const auto peak = static_cast<double>(peaks[static_cast<std::size_t>(rank)]);
        EXPECT_NEAR(peak / peak_bytes(run, costs, rank), 1, within) << "rank " << rank;
      }
    }
  }
}

TEST(StepMemory, Goes_back_after_steps_of_any_number_of_microbatches_whose_programs_are_built_once) {
  constexpr std::int64_t kNumRanks = 2, kNumSteps = 100, kNumKinds = 5;
  std::atomic<std::int64_t> num_built = 0;
  PipelineSchedule schedule = schedule_of(OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true});
  schedule.order = [&, order = schedule.order](const auto&... arguments) {
    ++num_built;
    return order(arguments...);
  };
  run_ranks(RankBackend::kThreads, kNumRanks, [&](World& world) {
    const DistContext context = context_of(world);
    Part part(context, schedule, {});
    part.run(kNumKinds);  // allocates the gradients
    const MemoryPeak memory;
    for (std::int64_t step = 0; step < kNumSteps; ++step) {
      part.run(1 + (step * 3) % kNumKinds);
      ASSERT_EQ(memory.live_bytes(), 0) << "after step " << step;
    }
  });
  EXPECT_EQ(num_built, kNumRanks * kNumRanks * kNumKinds);
}

// An inbox grows to the longest message so far, in place of the previous inbox, and keeps its size when messages are
// shorter again.
TEST(StepMemory, Of_growing_messages_and_any_number_of_microbatches_is_that_of_the_longest) {
  constexpr std::int64_t kNumRanks = 2, kNumSteps = 100, kMostMicrobatches = 6, kLongest = 4000;
  const PipelineSchedule schedule = schedule_of(OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true});
  run_ranks(RankBackend::kThreads, kNumRanks, [&](World& world) {
    const DistContext context = context_of(world);
    const auto prepared = [&] {  // with allocated gradients
      auto part = std::make_unique<Part>(context, schedule, ToyShape{});
      part->run(kMostMicrobatches);
      return part;
    };
    const auto at_once = prepared();
    const MemoryPeak of_longest;
    at_once->network.num_more_rows = kLongest;
    at_once->run(kMostMicrobatches);
    const std::int64_t inboxes = of_longest.live_bytes();
    ASSERT_GT(inboxes, kLongest * kToyWidth * 8) << "inboxes are not counted";

    const auto part = prepared();
    const MemoryPeak memory;
    std::int64_t most_rows = 0, live = 0, num_changes = 0, num_growths = 0;
    const auto run = [&](std::int64_t num_microbatches, std::int64_t num_more_rows) {
      part->network.num_more_rows = num_more_rows;
      const std::int64_t rows = part->network.num_rows(std::min<std::int64_t>(num_microbatches - 1, 2));
      if (rows > std::exchange(most_rows, std::max(rows, most_rows))) ++num_growths;
      part->run(num_microbatches);
      if (memory.live_bytes() != std::exchange(live, memory.live_bytes())) ++num_changes;
    };
    for (std::int64_t step = 0; step < kNumSteps; ++step) {
      // The same numbers on both ranks: lengths grow until step 50, and are shorter in two of three steps.
      const std::int64_t limit = kLongest * std::min<std::int64_t>(1 + step / 10, 5) / 5;
      run(1 + (step * 5 + step / 7) % kMostMicrobatches, step % 3 == 0 ? limit : 100 + (step * 37) % 300);
    }
    run(kMostMicrobatches, kLongest);
    EXPECT_EQ(live, inboxes);
    EXPECT_LE(num_changes, num_growths);
  });
}

}  // namespace
}  // namespace d9d::test::step_memory_test
