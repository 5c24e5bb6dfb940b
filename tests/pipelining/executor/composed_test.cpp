// Computations that a program composes: the order in which they are issued, and that a GPU runs them at once.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <gtest/gtest.h>

#include "d9d/pipelining/executor/pipeline_executor.h"

#include "tests/pipelining/executor/toy_stages.h"
#include "tests/support/gpu_test.h"
#include "tests/support/ranks.h"
#include "tests/support/stream_gate.h"

namespace d9d::test::composed_test {
namespace {

constexpr std::int64_t kNumMicrobatches = 4;

// Both stages of dual_pipe_v on one rank: F0.0 F1.0 F0.1 B1.0, then pairs, the first one F1.1 beside B0.0.
template <class Stage>
struct OneRank {
  OneRank(World& world, at::Device device)
      : context({.world = borrowed(world), .log_sink = [](std::string_view) {}}),
        executor(context, schedule_of(DualPipeVScheduleConfig{})),
        network({.num_stages = 2, .num_microbatches = kNumMicrobatches, .has_more_tensors = false, .device = device}),
        first(network, {0}),
        second(network, {1}) {}
  void run() { executor.run({&first, &second}, kNumMicrobatches); }

  DistContext context;
  PipelineExecutor executor;
  ToyNetwork network;
  Stage first, second;
};

TEST(Composed, Issues_the_backward_first) {
  run_ranks(RankBackend::kThreads, 1, [](World& world) {
    OneRank<ToyStage> rank(world, at::kCPU);
    std::vector<std::string> issued;
    for (ToyStage* stage : {&rank.first, &rank.second}) {
      stage->on_forward = [&](StageIndex index, MicrobatchIndex microbatch) {
        issued.push_back(to_text(ComputeAction(ForwardAction{index, microbatch})));
      };
      stage->on_backward = [&](StageIndex index, MicrobatchIndex microbatch, BackwardPart part) {
        if (part == BackwardPart::kWhole) issued.push_back(to_text(ComputeAction(BackwardAction{index, microbatch})));
      };
    }
    rank.run();
    const PipelineProgram program = build_program(schedule_of(DualPipeVScheduleConfig{}), 1, kNumMicrobatches);
    std::size_t num_pairs = 0;
    for (const Action& action : program.ranks[0]) {
      if (!holds<ComposedAction>(action)) continue;
      const auto parts = compute_parts(action);
      const auto place_of = [&](const ComputeAction& part) { return std::ranges::find(issued, to_text(part)); };
      ASSERT_TRUE(holds<ForwardAction>(parts[0]) && holds<BackwardAction>(parts[1])) << to_text(action);
      EXPECT_LT(place_of(parts[1]), place_of(parts[0])) << to_text(action);
      ++num_pairs;
    }
    EXPECT_GE(num_pairs, 3U);
  });
}

struct Hold {
  bool begins = false;
  std::optional<StreamGate> gate = {};           // before the first backward of the first stage
  std::optional<c10::Event> forward_ended = {};  // the next forward
};

class HeldStage final : public ToyStage {
 public:
  using ToyStage::ToyStage;

  std::vector<at::Tensor> forward(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                  bool backward_follows) override {
    std::vector<at::Tensor> made = ToyStage::forward(microbatch, arrived, backward_follows);
    if (hold->gate && !hold->forward_ended) {
      hold->forward_ended.emplace(at::kCUDA);
      hold->forward_ended->record(at::accelerator::getCurrentStream(0));
    }
    return made;
  }
  void backward(MicrobatchIndex microbatch, BackwardPart part, bool is_last,
                const std::function<void()>& compute) override {
    if (hold->begins && is_first && !hold->gate) hold->gate.emplace(at::Device(at::kCUDA, 0));
    ToyStage::backward(microbatch, part, is_last, compute);
  }

  Hold* hold = nullptr;
  bool is_first = false;
};

class ComposedCuda : public GpuTest {};

// Were a pair to run in a row, its forward would not end while its backward is held.
TEST_F(ComposedCuda, Runs_a_forward_while_the_backward_beside_it_is_held) {
  run_ranks(RankBackend::kNccl, 1, [](World& world) {
    OneRank<HeldStage> rank(world, at::Device(at::kCUDA, 0));
    Hold hold;
    rank.first.hold = rank.second.hold = &hold;
    rank.first.is_first = true;
    rank.run();  // all memory is there and the kernels are loaded, for which the device might wait
    for (const at::Tensor& weight : rank.network.weights) weight.mutable_grad() = at::Tensor();
    at::accelerator::synchronizeDevice(0);
    hold.begins = true;
    rank.run();
    ASSERT_TRUE(hold.forward_ended);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!hold.forward_ended->query() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(hold.forward_ended->query());
    hold.gate->open();
    at::accelerator::synchronizeDevice(0);
    ToyNetwork whole(rank.network.shape);
    whole.run_in_one_piece();
    for (std::size_t i = 0; i < whole.weights.size(); ++i) {
      EXPECT_TRUE(at::allclose(rank.network.weights[i].grad(), whole.weights[i].grad(), 1e-13, 1e-13)) << "layer " << i;
    }
  });
}

}  // namespace
}  // namespace d9d::test::composed_test
