// The bubble fraction of a run is the one that the simulator predicts. Each rank has a clock that a computation
// advances by the time of its stage, and a message carries the clock of its sender. So the result depends only on the
// order and the waits of the executor, and not on the machine.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/pipelining/simulator/simulate.h"

#include "tests/pipelining/executor/toy_part.h"

namespace d9d::idle_ranks_test {
namespace {

// The clock of a rank.
struct RankClock {
  double now = 0;
  double busy = 0;

  void compute(double duration) {
    now += duration;
    busy += duration;
  }
};

struct TimedStageState {
  RankClock* clock;
  StageCosts costs;
};

at::Tensor message(const RankClock& clock) { return at::full({1}, clock.now, at::kDouble); }
void wait_for(RankClock& clock, const at::Tensor& message) { clock.now = std::max(clock.now, message.item<double>()); }

// The values of activations and of their gradients are the times at which they were computed. The gradient of the
// weight may be computed later, as in a split backward; otherwise it is computed before backward() returns.
struct Timed : torch::autograd::Function<Timed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& /*weight*/, TimedStageState* stage) {
    context->saved_data["stage"] = reinterpret_cast<std::int64_t>(stage);
    wait_for(*stage->clock, x);
    stage->clock->compute(stage->costs.forward);
    return message(*stage->clock);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* const stage = reinterpret_cast<TimedStageState*>(context->saved_data["stage"].toInt());
    wait_for(*stage->clock, gradients[0]);
    stage->clock->compute(stage->costs.backward_input);
    const std::array reads = {gradients[0]};
    const auto product = [stage](std::span<const at::Tensor> tensors, const std::optional<GradientPlace>& place) {
      stage->clock->compute(stage->costs.backward_weight);
      if (!place) return tensors[0].sum();
      place->put(tensors[0].sum());
      return at::Tensor();
    };
    at::Tensor of_weight = make_gradient(1, reads, product);
    return {message(*stage->clock), std::move(of_weight), at::Tensor()};
  }
};

class TimedStage final : public PipelineStage {
 public:
  TimedStage(StageIndex index, std::int64_t num_stages, TimedStageState state)
      : is_last_(index.value + 1 == num_stages), state_(state) {}
  std::vector<at::Tensor> transfer(MicrobatchIndex, StageBoundary) const override {
    return {at::empty({1}, at::TensorOptions(at::kMeta).dtype(at::kDouble))};
  }
  std::vector<at::Tensor> forward(MicrobatchIndex, const std::vector<at::Tensor>& arrived, bool) override {
    const at::Tensor input = arrived.empty() ? at::zeros({1}, at::kDouble).requires_grad_() : arrived.front();
    const at::Tensor made = Timed::apply(input, weight_, &state_);
    return {is_last_ ? made.sum() * 0 : made};  // the gradient of the loss is available from the beginning
  }
  std::vector<at::Tensor> weights() const override { return {weight_}; }

 private:
  const bool is_last_;
  TimedStageState state_;
  at::Tensor weight_ = at::ones({}, at::kDouble).requires_grad_();
};

// Costs that differ from stage to stage, as those of models do. Their sums are exact.
PipelineCosts unequal_costs(std::int64_t num_stages) {
  PipelineCosts costs;
  for (std::int64_t i = 0; i < num_stages; ++i) {
    const double forward = 8 + static_cast<double>(i % 3), input = 9 + static_cast<double>(i * 5 % 4);
    const double weight = 6 + static_cast<double>(i * 3 % 5);
    costs.stages.push_back(
        {.forward = forward, .backward = input + weight, .backward_input = input, .backward_weight = weight});
  }
  return costs;
}

// The bubble fraction: the share of the ranks' time in which they do not compute, from the first computation to the
// last.
double bubble_fraction(const PipelineSchedule& schedule, std::int64_t num_ranks, std::int64_t num_microbatches,
                       const PipelineCosts& costs) {
  double share = 0;
  test::run_ranks(test::RankBackend::kThreads, num_ranks, [&](World& world) {
    const DistContext context = test::context_of(world);
    PipelineExecutor executor(context, schedule);
    RankClock clock;
    std::vector<std::unique_ptr<TimedStage>> stages;
    std::vector<PipelineStage*> borrowed_stages;
    for (const StageIndex index : executor.stages()) {
      const TimedStageState state{.clock = &clock, .costs = costs.stages[static_cast<std::size_t>(index.value)]};
      stages.push_back(std::make_unique<TimedStage>(index, executor.placement().num_stages(), state));
      borrowed_stages.push_back(stages.back().get());
    }
    executor.run(borrowed_stages, num_microbatches);
    double end = 0, busy = 0;
    const DeviceMesh ranks = context.mesh(MeshDomain::kRegular).slice({"pp"});
    for (const nlohmann::json& one : all_gather_object(nlohmann::json::array({clock.now, clock.busy}), ranks)) {
      end = std::max(end, one[0].get<double>());
      busy += one[1].get<double>();
    }
    if (world.rank() == 0) share = 1 - busy / (static_cast<double>(num_ranks) * end);
  });
  return share;
}

TEST(IdleRanks, Are_idle_as_long_as_the_simulator_says_of_unequal_stages) {
  for (const PipelineScheduleConfig& config :
       {PipelineScheduleConfig(GPipeScheduleConfig{}), PipelineScheduleConfig(LoopedBfsScheduleConfig{2}),
        PipelineScheduleConfig(OneFOneBScheduleConfig{}), PipelineScheduleConfig(OneFOneBScheduleConfig{2}),
        PipelineScheduleConfig(OneFOneBScheduleConfig{.zero_bubble = true}),
        PipelineScheduleConfig(ZeroBubbleVScheduleConfig{}), PipelineScheduleConfig(DualPipeVScheduleConfig{})}) {
    for (const std::int64_t num_ranks : {2, 4}) {
      const PipelineSchedule schedule = schedule_of(config);
      SCOPED_TRACE(schedule.name + " of " + std::to_string(num_ranks) + " ranks");
      const std::int64_t num_microbatches = 4 * num_ranks;
      const PipelineProgram program = build_program(schedule, num_ranks, num_microbatches);
      const PipelineCosts costs = unequal_costs(program.stages.num_stages());
      const double simulated = simulate(program, {.costs = costs}).bubble_fraction();
      EXPECT_GT(simulated, 0);
      EXPECT_NEAR(bubble_fraction(schedule, num_ranks, num_microbatches, costs), simulated, test::kRounding);
    }
  }
}

}  // namespace
}  // namespace d9d::idle_ranks_test
