// Which microbatches are captured and what a replay produces, with graphs that the test simulates.
#include "d9d/loop/step/microbatch_graphs.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/blocks/normalization/rms_norm.h"
#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/core/offload/offload.h"
#include "d9d/loop/graphs/cuda_graph_rules.h"
#include "d9d/loop/task/replicate_over_data.h"

#include "tests/loop/step/idle_optimizer.h"
#include "tests/support/ranks.h"

namespace d9d::microbatch_graphs_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct State {
  at::Tensor doubled;         // written by the loss
  std::int64_t exponent = 1;  // of the loss: a host value
  at::Tensor total;           // if defined, the loss adds x to it in place
  static constexpr auto fields() {
    return record<State>(field("doubled", &State::doubled), field("exponent", &State::exponent),
                         field("total", &State::total));
  }
};

struct Batch {
  at::Tensor x;  // [n] double
  std::int64_t exponent = 1;
  at::Tensor total = {};
  static constexpr auto fields() {
    return record<Batch>(field("x", &Batch::x), field("exponent", &Batch::exponent), field("total", &Batch::total));
  }
};

struct Types {
  using Batch = microbatch_graphs_test::Batch;
  using Input = at::Tensor;  // x
  using Shared = std::monostate;
  using Output = at::Tensor;
  using State = microbatch_graphs_test::State;
};

class Task final : public TrainTask<Types> {
 public:
  ForwardInputs<Types> build_forward_inputs(const Batch& batch) override {
    return {.input = batch.x, .shared = {}, .state = {.doubled = {}, .exponent = batch.exponent, .total = batch.total}};
  }
  LossResult compute_loss(const at::Tensor&, State&, const JobSchedule&) override { return {}; }
};

// Simulates a device: the captured work itself registers what a replay must do.
struct Played final : DeviceGraph {
  explicit Played(std::function<void()>*& where) : recorder(where) {}
  void capture(const std::function<void()>& work) override {
    recorder = &on_replay;
    work();
    recorder = nullptr;
  }
  void replay() override { on_replay(); }
  std::function<void()>*& recorder;
  std::function<void()> on_replay;
};

// loss = sum(w * x^exponent), weight = x[0], for a module with the weights w.
class Job {
 public:
  explicit Job(const CudaGraphConfig& config = {}, c10::Device device = at::kCPU, World* world = nullptr)
      : context_(world == nullptr ? DistContext({.world = one_rank_world()})
                                  : DistContext({.mesh = {.data_parallel_replicate = world->size()},
                                                 .world = test::borrowed(*world),
                                                 .local_rank = world->rank()})),
        graphs_(
            config, [this] { return std::make_unique<Played>(recorder_); }, device, *module_) {
    module_->to(at::kDouble);
    replicate_over_data(context_, *module_);
    module_->materialize(at::kCPU);
    module_->reset_parameters(0);
    manager_.emplace(context_, *module_, GradientManagerConfig{}, GradientClippingConfig{}, GradientMemory::kKept);
    // The memory of the gradient, which all steps use.
    memory_ = gradient_after(*manager_, {{at::zeros({kSize}, at::kDouble), 1}});
  }

  using One = Batch;

  // Runs a step and returns its gradient, which is not divided.
  at::Tensor step(const std::vector<One>& microbatches) { return gradient_after(*manager_, microbatches).clone(); }

  std::vector<std::string> log;                     // the host's work
  std::vector<at::Tensor> doubled, losses, totals;  // of each microbatch
  [[nodiscard]] const GraphCounts& counts() const { return graphs_.counts(); }
  [[nodiscard]] std::int64_t num_kinds() const { return graphs_.num_kinds(); }
  [[nodiscard]] ParameterPtr parameter() const { return module_->named_parameters().front().second; }
  static constexpr std::int64_t kSize = 3;

 private:
  at::Tensor gradient_after(GradientManager& manager, const std::vector<One>& microbatches) {
    for (std::size_t i = 0; i < microbatches.size(); ++i) {
      Microbatch<Types> microbatch(task_, microbatches[i]);
      microbatch.build_inputs();
      const at::Tensor own_weight = at::full({}, static_cast<double>(++num_run_));
      microbatch.number = num_run_;
      microbatch.loss_weights = {{"own", own_weight}};
      const WeightedLoss loss = graphs_.run(microbatch, /*is_last=*/i + 1 == microbatches.size(), manager,
                                            [&](AnyMicrobatch& any, bool is_captured) {
                                              auto& one = static_cast<Microbatch<Types>&>(any);
                                              return is_captured ? capture(one) : work(one);
                                            });
      EXPECT_EQ(microbatch.number, num_run_);
      EXPECT_TRUE(microbatch.loss_weights.at("own").is_same(own_weight));  // a replay leaves the task's weights alone
      manager.add_loss_with_weight(loss.loss, loss.weight);
      losses.push_back(loss.loss);
      doubled.push_back(microbatch.state().doubled);
      totals.push_back(microbatch.state().total);
    }
    Optimizer optimizer{test::IdleOptimizer()};
    (void)manager.apply(optimizer, /*learning_rate=*/0.0);
    const at::Tensor gradient = parameter()->stored().grad();
    manager.reset();
    return gradient;
  }

  WeightedLoss work(Microbatch<Types>& microbatch) {
    log.emplace_back("run");
    const at::Tensor& x = microbatch.input();
    auto& state = microbatch.state();
    state.doubled = x * 2;
    if (state.total.defined()) state.total.add_(x);
    const at::Tensor loss = (parameter()->local() * x.pow(state.exponent)).sum();
    const at::Tensor weight = x.reshape({-1})[0];
    (loss * weight).backward();
    return {.loss = loss.detach(), .weight = weight.detach()};
  }

  // Computes nothing, and registers with the graph what a device would have recorded.
  WeightedLoss capture(Microbatch<Types>& microbatch) {
    log.emplace_back("capture");
    const at::Tensor& x = microbatch.input();
    auto& state = microbatch.state();
    const bool adds = manager_->received().front();
    const at::Tensor nothing = at::full({}, std::nan(""), at::kDouble);
    const WeightedLoss loss{.loss = nothing.clone(), .weight = nothing.clone()};
    state.doubled = at::full_like(x, std::nan(""));
    if (state.total.defined()) state.total.zero_();  // marks the tensor as written, as the device's work would
    (parameter()->local() * 0).sum().backward();     // shows where gradients are stored
    *recorder_ = [this, x = x, state = state, loss, adds] {
      const at::NoGradGuard no_grad;
      const at::Tensor powers = x.pow(state.exponent), weight = x.reshape({-1})[0];
      state.doubled.copy_(x * 2);
      if (state.total.defined()) state.total.add_(x);
      loss.loss.copy_((parameter()->local() * powers).sum());
      loss.weight.copy_(weight);
      const at::Tensor gradient = (powers * weight).reshape({-1, kSize}).sum(0);
      adds ? memory_.add_(gradient) : memory_.copy_(gradient);
    };
    return loss;
  }

  Task task_;
  std::uint64_t num_run_ = 0;
  DistContext context_;
  ModulePtr<RMSNorm> module_ = make_module<RMSNorm>(RMSNormConfig{.hidden_size = kSize});
  std::optional<GradientManager> manager_;
  std::function<void()>* recorder_ = nullptr;  // of the current capture
  MicrobatchGraphs graphs_;
  at::Tensor memory_;
};

at::Tensor x(double value) { return at::arange(3, at::kDouble) + value; }
// All weights w are 1, so the gradient of a microbatch is x^exponent * x[0].
at::Tensor gradient(const std::vector<Job::One>& microbatches) {
  at::Tensor sum = at::zeros({3}, at::kDouble);
  for (const auto& one : microbatches)
    sum = sum + (one.x.pow(one.exponent) * one.x.reshape({-1})[0]).reshape({-1, 3}).sum(0);
  return sum;
}

#define EXPECT_STEP(job, ...) EXPECT_TRUE(at::equal(job.step(__VA_ARGS__), gradient(__VA_ARGS__)))

using Ones = std::vector<Job::One>;

TEST(MicrobatchGraphs, Runs_a_kind_as_usual_then_captures_it_and_replays_it) {
  Job job({.num_warm_up_steps = 2});
  job.log.clear();
  for (int i = 0; i < 5; ++i) EXPECT_STEP(job, Ones{{x(i + 1)}});
  EXPECT_THAT(job.log, ElementsAre("run", "capture"));  // the constructor of the job ran the other warm-up step
  EXPECT_EQ(job.counts().graphs, 1);
  EXPECT_EQ(job.counts().replays, 4);
  EXPECT_EQ(job.counts().eager, 2);
}

TEST(MicrobatchGraphs, Overwrites_gradients_first_and_adds_to_them_then) {
  Job job({.num_warm_up_steps = 1});
  for (int i = 0; i < 6; ++i) EXPECT_STEP(job, Ones{{x(i + 1)}, {x(i + 2)}, {x(i * 5)}});
  EXPECT_EQ(job.counts().graphs, 2);
  EXPECT_GT(job.counts().replays, 3 * 4);
}

TEST(MicrobatchGraphs, Captures_the_kinds_of_a_step_in_one_step) {
  Job job({.num_warm_up_steps = 2});
  job.log.clear();
  const auto squares = [](double value) { return Job::One{.x = x(value), .exponent = 2}; };  // new kinds
  for (int i = 0; i < 4; ++i) EXPECT_STEP(job, Ones{squares(i), squares(i + 1), squares(i + 2), squares(i + 3)});
  std::vector<std::string> expected(2 * 4, "run");
  expected.insert(expected.end(), 2, "capture");
  EXPECT_EQ(job.log, expected);
}

TEST(MicrobatchGraphs, Runs_other_shapes_and_host_values_as_usual_in_between) {
  Job job({.num_warm_up_steps = 1, .max_graphs = 2});
  const at::Tensor matrix = at::arange(6, at::kDouble).view({2, 3}) + 1;
  for (int i = 0; i < 4; ++i) EXPECT_STEP(job, Ones{{x(i + 1)}, {x(i + 2)}});
  ASSERT_EQ(job.counts().graphs, 2);
  const std::int64_t eager = job.counts().eager;
  for (int i = 0; i < 4; ++i) {
    EXPECT_STEP(job, Ones{{matrix}, {x(i + 2)}});
    EXPECT_STEP(job, Ones{{x(i + 1)}, {matrix}});
    EXPECT_STEP(job, Ones{{x(i + 1), /*exponent=*/2}, {x(i + 2)}});
  }
  EXPECT_EQ(job.counts().graphs, 2);
  EXPECT_EQ(job.counts().eager - eager, 4 * 3);
}

TEST(MicrobatchGraphs, Gives_values_that_later_replays_leave_alone) {
  Job job({.num_warm_up_steps = 1});
  for (int i = 0; i < 4; ++i) (void)job.step({{x(i)}});
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(at::equal(job.doubled[1 + i], x(i) * 2)) << i;
    EXPECT_EQ(job.losses[1 + i].item<double>(), 3.0 * i + 3) << i;
  }
}

TEST(MicrobatchGraphs, Gives_states_that_the_work_writes_in_place_their_new_values) {
  Job job({.num_warm_up_steps = 1});
  for (int i = 0; i < 5; ++i) (void)job.step({{.x = x(i), .total = x(10)}});
  ASSERT_EQ(job.counts().replays, 4);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(job.totals[1 + i], x(10) + x(i))) << i;
}

TEST(MicrobatchGraphs, Forgets_kinds_that_do_not_come_back) {
  Job job({.num_warm_up_steps = 2});
  constexpr std::int64_t kMaxWaiting = detail::GraphKinds<int>::kMaxWaiting;
  for (std::int64_t rows = 2; rows < 2 * kMaxWaiting; ++rows) (void)job.step({{at::ones({rows, 3}, at::kDouble)}});
  EXPECT_EQ(job.num_kinds(), kMaxWaiting);
  for (int i = 0; i < 5; ++i) EXPECT_STEP(job, Ones{{x(i)}});
  EXPECT_EQ(job.counts().graphs, 1);
}

TEST(MicrobatchGraphs, Remembers_no_kinds_without_graphs_when_there_are_all_graphs) {
  Job job({.num_warm_up_steps = 2, .max_graphs = 1});
  for (std::int64_t rows = 2; rows < 10; ++rows) (void)job.step({{at::ones({rows, 3}, at::kDouble)}});
  for (int i = 0; i < 4; ++i) (void)job.step({{x(i)}});
  for (std::int64_t rows = 2; rows < 10; ++rows) (void)job.step({{at::ones({rows, 3}, at::kDouble)}});
  EXPECT_EQ(job.counts().graphs, 1);
  EXPECT_EQ(job.num_kinds(), 1);
}

TEST(MicrobatchGraphs, Captures_anew_when_the_memory_of_a_parameter_was_exchanged) {
  Job job({.num_warm_up_steps = 1});
  for (int i = 0; i < 3; ++i) EXPECT_STEP(job, Ones{{x(i)}});
  job.log.clear();
  const at::Tensor& weights = job.parameter()->local();
  const void* const before = weights.const_data_ptr();
  OffloadedTensors asleep = offload_storages({weights.storage()});
  std::vector<at::Tensor> in_between;  // they occupy the memory that is free now
  for (int i = 0; i < 64; ++i) in_between.push_back(at::zeros(weights.sizes(), weights.options()));
  onload_tensors(asleep);
  ASSERT_NE(weights.const_data_ptr(), before);
  for (int i = 0; i < 3; ++i) EXPECT_STEP(job, Ones{{x(i)}});
  EXPECT_THAT(job.log, ElementsAre("run", "capture"));
  EXPECT_EQ(job.counts().graphs, 1);
}

// Otherwise replays would still compute the gradient of a frozen parameter.
TEST(ModuleMemory, Has_changed_where_a_parameter_is_frozen_or_trained_again) {
  const auto module = make_module<RMSNorm>(RMSNormConfig{.hidden_size = 3});
  module->materialize(at::kCPU);
  detail::ModuleMemory memory(*module);
  EXPECT_TRUE(memory.has_changed());
  EXPECT_FALSE(memory.has_changed());
  for (const bool is_trained : {false, true}) {
    module->named_parameters().front().second->set_requires_grad(is_trained);
    EXPECT_TRUE(memory.has_changed()) << is_trained;
    EXPECT_FALSE(memory.has_changed()) << is_trained;
  }
}

TEST(MicrobatchGraphs, Runs_tensors_of_another_device_as_usual) {
  Job job({.num_warm_up_steps = 1}, at::Device(at::kMeta));
  for (int i = 0; i < 4; ++i) EXPECT_STEP(job, Ones{{x(i)}});
  EXPECT_EQ(job.counts().graphs, 0);
  EXPECT_EQ(job.counts().replays, 0);
}

TEST(MicrobatchGraphs, Sums_replayed_gradients_over_ranks) {
  test::run_ranks(test::RankBackend::kThreads, 2, [](World& world) {
    Job job({.num_warm_up_steps = 1}, at::kCPU, &world);
    const auto rank = static_cast<double>(world.rank());
    for (int i = 0; i < 5; ++i) {
      const at::Tensor expected = gradient({{x(i)}, {x(i + 1)}, {x(i + 2)}, {x(i + 3)}});
      EXPECT_TRUE(at::equal(job.step({{x(i + 2 * rank)}, {x(i + 2 * rank + 1)}}), expected));
    }
    EXPECT_EQ(job.counts().graphs, 2);
  });
}

struct Failing final : DeviceGraph {
  void capture(const std::function<void()>&) override { C10_THROW_ERROR(Error, "operation not permitted\nmore"); }
  void replay() override {}
};

TEST(MicrobatchGraphs, Says_what_to_do_about_work_that_cannot_be_captured) {
  const MakeDeviceGraph make_graph = detail::with_remedies([] { return std::make_unique<Failing>(); });
  EXPECT_THAT([&] { make_graph()->capture([] {}); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("[loop::cuda_graph]"), HasSubstr("operation not permitted The"),
                                              HasSubstr("set trainer.cuda_graph to null"))));
}

struct OpaqueTypes : Types {
  using State = std::shared_ptr<int>;
};

TEST(MicrobatchGraphs, Refuses_states_that_it_cannot_compare) {
  const TrainerConfig config{.cuda_graph = CudaGraphConfig()};
  EXPECT_NO_THROW(check_cuda_graph(config, Microbatch<Types>::kHasKey));
  EXPECT_THAT([&] { check_cuda_graph(config, Microbatch<OpaqueTypes>::kHasKey); },
              ThrowsMessage<ConfigError>(HasSubstr("expected inputs and state of tensors, numbers")));
}

}  // namespace
}  // namespace d9d::microbatch_graphs_test
