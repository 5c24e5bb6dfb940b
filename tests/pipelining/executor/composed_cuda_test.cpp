// Composed computations on a GPU run at the same time, and memory that they pass on or free is not overwritten while it
// is read. The stream of each backward that is composed with a forward is blocked until that forward has ended on the
// device. Before its end the forward fills all memory that the allocator has got back meanwhile with NaN.
#include <chrono>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <gmock/gmock.h>

#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/pipelining/executor/measure_stage.h"
#include "d9d/pipelining/executor/pipeline_executor.h"
#include "d9d/pipelining/program/rank_plan.h"

#include "tests/pipelining/executor/toy_part.h"
#include "tests/support/gpu_test.h"
#include "tests/support/stream_gate.h"

namespace d9d::test::composed_cuda_test {
namespace {

const at::Device kGpu(at::kCUDA, 0);
constexpr std::int64_t kNumMicrobatches = 6;

using Pair = std::pair<PlannedCompute, PlannedCompute>;  // forward, backward

std::vector<Pair> pairs_of_dual_pipe_v() {
  const PipelineProgram program = build_program(schedule_of(DualPipeVScheduleConfig{}), 1, kNumMicrobatches);
  std::vector<Pair> pairs;
  for (const PlannedStep& step : plan_rank(program, 0)) {
    const auto* const parts = std::get_if<std::vector<PlannedCompute>>(&step);
    if (parts != nullptr && can_run_at_once(*parts)) pairs.emplace_back(parts->front(), parts->back());
  }
  return pairs;
}

// The order in which the executor issues dual_pipe_v, one computation after the other.
PipelineSchedule one_after_the_other() {
  PipelineSchedule schedule = schedule_of(DualPipeVScheduleConfig{});
  schedule.order = [order = schedule.order](const StagePlacement& stages, std::int64_t rank, std::int64_t num) {
    return as_issued(order(stages, rank, num));
  };
  return schedule;
}

// State that both stages share.
struct Held {
  bool holds = false;
  std::set<ComputeAction> backwards = {};               // those composed with a forward
  std::vector<std::unique_ptr<StreamGate>> gates = {};  // gates of the backwards that have begun
  std::vector<bool> has_ended = {};                     // whether the forward ended while its backward was held
  std::optional<ComputeAction> thrower = {};            // a forward that throws
  bool is_held() const { return gates.size() > has_ended.size(); }
};

bool is_reached(const c10::Event& event) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!event.query() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  return event.query();
}

class HeldStage final : public ToyStage {
 public:
  HeldStage(const ToyNetwork& network, StageIndex index, Held& held)
      : ToyStage(network, index), index_(index), held_(held) {}

  std::vector<at::Tensor> forward(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                  bool backward_follows) override {
    if (held_.thrower == ComputeAction(ForwardAction{index_, microbatch})) throw std::runtime_error("as asked");
    auto made = ToyStage::forward(microbatch, arrived, backward_follows);
    const at::TensorOptions doubles(kGpu);
    std::vector<at::Tensor> taken;  // all tensors of the network are as small as these
    for (int i = 0; i < 256; ++i) {
      taken.push_back(at::full({16}, std::numeric_limits<double>::quiet_NaN(), doubles.dtype(at::kDouble)));
    }
    if (!held_.is_held()) return made;
    c10::Event ended(at::kCUDA);
    ended.record(at::accelerator::getCurrentStream(0));
    held_.has_ended.push_back(is_reached(ended));
    held_.gates.back()->open();
    return made;
  }
  void backward(MicrobatchIndex microbatch, BackwardPart part, bool is_last,
                const std::function<void()>& compute) override {
    if (held_.holds && held_.backwards.contains(BackwardAction{index_, microbatch})) {
      held_.gates.push_back(std::make_unique<StreamGate>(kGpu));
    }
    ToyStage::backward(microbatch, part, is_last, compute);
  }

 private:
  const StageIndex index_;
  Held& held_;
};

// Both stages of a V on one GPU.
struct OneGpu {
  explicit OneGpu(PipelineSchedule schedule) : executor(context, std::move(schedule)) {
    for (const auto& [forward, backward] : pairs_of_dual_pipe_v()) held.backwards.insert(backward.action);
    run();  // allocates memory and loads kernels, which may make the device wait
    clear();
  }
  void run() { executor.run({&first, &second}, kNumMicrobatches); }
  void clear() const {
    at::accelerator::synchronizeDevice(0);
    for (const at::Tensor& weight : network.weights) weight.mutable_grad() = at::Tensor();
  }

  DistContext context = DistContext({.world = one_rank_world(kGpu), .log_sink = [](std::string_view) {}});
  PipelineExecutor executor;
  ToyNetwork network{{.num_stages = 2, .num_microbatches = kNumMicrobatches, .device = kGpu}};
  Held held = {};
  HeldStage first{network, {0}, held}, second{network, {1}, held};
};

class ComposedCuda : public GpuTest {};

// If a pair ran one after the other, its forward would not end while its backward is blocked.
TEST_F(ComposedCuda, Run_at_once_whichever_lane_the_backward_is_in) {
  const auto pairs = pairs_of_dual_pipe_v();
  std::set<std::int64_t> lanes;
  for (const auto& [forward, backward] : pairs) lanes.insert(backward.lane);
  ASSERT_EQ(lanes.size(), 2U);
  OneGpu rank(schedule_of(DualPipeVScheduleConfig{}));
  EXPECT_TRUE(rank.executor.runs_at_once(kNumMicrobatches));
  rank.held.holds = true;
  rank.run();
  at::accelerator::synchronizeDevice(0);
  ASSERT_EQ(rank.held.has_ended.size(), pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    EXPECT_TRUE(rank.held.has_ended[i]) << to_text(pairs[i].first.action) << "|" << to_text(pairs[i].second.action);
  }
}

TEST_F(ComposedCuda, Are_measured_at_the_same_time) {
  OneGpu rank(schedule_of(DualPipeVScheduleConfig{}));
  const ComputeStreams streams(rank.context.world());
  const std::vector<at::Tensor> arrived = [&] {
    const at::NoGradGuard no_grad;
    return ToyStage(rank.network, {0}).forward({0}, {}, true);
  }();
  const StageSample of_first{.device = kGpu, .num_repeats = 2};
  const StageSample of_second{.arrived = arrived, .is_last = true, .device = kGpu};
  rank.held.backwards = {BackwardAction{{0}, {0}}};
  for (const bool holds : {false, true}) {  // the first run allocates memory and loads kernels
    rank.held.holds = holds;
    EXPECT_GT(measure_composed({rank.second, of_second}, {rank.first, of_first}, &streams), 0);
  }
  EXPECT_THAT(rank.held.has_ended, ::testing::ElementsAre(true, true, true));
}

TEST_F(ComposedCuda, Give_the_bits_of_one_after_the_other) {
  OneGpu in_a_row(one_after_the_other()), at_once(schedule_of(DualPipeVScheduleConfig{}));
  EXPECT_FALSE(in_a_row.executor.runs_at_once(kNumMicrobatches));
  at_once.held.holds = true;
  for (int step = 0; step < 3; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    in_a_row.run();
    at_once.run();
    at::accelerator::synchronizeDevice(0);
    for (std::size_t i = 0; i < at_once.network.weights.size(); ++i) {
      EXPECT_TRUE(at::equal(at_once.network.weights[i].grad(), in_a_row.network.weights[i].grad())) << "layer " << i;
    }
    in_a_row.clear();
    at_once.clear();
  }
}

// Unwinding frees memory that the backward still uses: work after it must wait for the backward.
TEST_F(ComposedCuda, Wait_for_a_backward_when_the_forward_beside_it_throws) {
  for (const auto& [forward, backward] : pairs_of_dual_pipe_v()) {
    SCOPED_TRACE(to_text(forward.action));
    OneGpu rank(schedule_of(DualPipeVScheduleConfig{}));
    rank.held.holds = true;
    rank.held.thrower = forward.action;
    EXPECT_THAT([&] { rank.run(); }, ::testing::ThrowsMessage<std::runtime_error>(::testing::HasSubstr("as asked")));
    c10::Event after(at::kCUDA);
    after.record(at::accelerator::getCurrentStream(0));
    ASSERT_TRUE(rank.held.is_held());
    EXPECT_FALSE(after.query());
    rank.held.gates.back()->open();
    EXPECT_TRUE(is_reached(after));
    at::accelerator::synchronizeDevice(0);
    EXPECT_EQ(rank.context.world()->lane(), 0);
  }
}

}  // namespace
}  // namespace d9d::test::composed_cuda_test
