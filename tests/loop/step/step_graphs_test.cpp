// Which microbatches are captured and what a replay produces, with graphs that the test simulates.
#include "d9d/loop/step/step_graphs.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/blocks/normalization/rms_norm.h"
#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/core/offload/offload.h"
#include "d9d/loop/graphs/cuda_graph_rules.h"
#include "d9d/loop/graphs/graph_remedies.h"
#include "d9d/loop/step/train_pack.h"
#include "d9d/loop/task/replicate_over_data.h"

#include "tests/loop/step/idle_optimizer.h"
#include "tests/support/ranks.h"

namespace d9d::step_graphs_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct State {
  at::Tensor doubled;         // written by the loss
  std::int64_t exponent = 1;  // of the loss: a host value
  at::Tensor total;           // if defined, the loss adds x to it in place
  at::Tensor loss = {};
  static constexpr auto fields() {
    return record<State>(field("doubled", &State::doubled), field("exponent", &State::exponent),
                         field("total", &State::total), field("loss", &State::loss));
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
  using Batch = step_graphs_test::Batch;
  using Input = at::Tensor;  // x
  using Shared = std::monostate;
  using Output = at::Tensor;
  using State = step_graphs_test::State;
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
class Task final : public TrainTask<Types> {
 public:
  ForwardInputs<Types> build_forward_inputs(const Batch& batch) override {
    return {.input = batch.x, .shared = {}, .state = {.doubled = {}, .exponent = batch.exponent, .total = batch.total}};
  }

  LossResult compute_loss(const at::Tensor& x, State& state, const JobSchedule&) override {
    log.emplace_back(recorder == nullptr ? "run" : "capture");
    if (recorder != nullptr) return capture(x, state);
    state.doubled = x * 2;
    if (state.total.defined()) state.total.add_(x);
    const at::Tensor loss = (parameter->local() * x.pow(state.exponent)).sum();
    state.loss = loss;
    return {.loss = loss, .loss_weight = x.reshape({-1})[0]};
  }

  void update_metrics(const State& state, const MetricMap&) override {
    doubled.push_back(state.doubled);
    losses.push_back(state.loss);
    totals.push_back(state.total);
  }

  std::function<void()>* recorder = nullptr;        // of the current capture
  std::vector<std::string> log;                     // the host's work
  std::vector<at::Tensor> doubled, losses, totals;  // of each microbatch
  ParameterPtr parameter;
  at::Tensor memory;  // of the parameter's gradient
  GradientManager* gradients = nullptr;

 private:
  // Computes nothing, and registers with the graphs what a device would have recorded.
  LossResult capture(const at::Tensor& x, State& state) {
    const at::Tensor nothing = at::full({}, std::nan(""), at::kDouble);
    const at::Tensor loss = (parameter->local() * 0).sum() + nothing, weight = at::zeros({}, at::kDouble);
    state.doubled = at::full_like(x, std::nan(""));
    state.loss = loss;
    *recorder = [this, x, state, loss, weight] {
      const at::NoGradGuard no_grad;
      state.doubled.copy_(x * 2);
      if (state.total.defined()) state.total.add_(x);
      // variable_data(): autograd does not see what a device writes.
      loss.variable_data().copy_((parameter->local() * x.pow(state.exponent)).sum());
      weight.variable_data().copy_(x.reshape({-1})[0]);
    };
    loss.register_hook([this, x, exponent = state.exponent](const at::Tensor& gradient) {
      const bool adds = gradients->received().front();
      *recorder = [this, x, exponent, adds] {
        const at::NoGradGuard no_grad;
        const at::Tensor own = (x.pow(exponent) * x.reshape({-1})[0]).reshape({-1, memory.numel()}).sum(0);
        adds ? memory.add_(own) : memory.copy_(own);
      };
      return gradient;
    });
    return {.loss = loss, .loss_weight = weight};
  }
};

class Job {
 public:
  explicit Job(const CudaGraphConfig& config = {}, c10::Device device = at::kCPU, World* world = nullptr)
      : context_(world == nullptr ? DistContext({.world = one_rank_world()})
                                  : DistContext({.mesh = {.data_parallel_replicate = world->size()},
                                                 .world = test::borrowed(*world),
                                                 .local_rank = world->rank()})),
        graphs_(
            config, [this] { return std::make_unique<Played>(task.recorder); }, device, *module_) {
    module_->to(at::kDouble);
    replicate_over_data(context_, *module_);
    module_->materialize(at::kCPU);
    module_->reset_parameters(0);
    gradients_.emplace(context_, *module_, GradientManagerConfig{}, GradientClippingConfig{}, GradientMemory::kKept);
    stage_.module = module_.shared();
    stage_.forward = [](const at::Tensor& x, std::monostate) { return x; };
    task.parameter = module_->named_parameters().front().second;
    task.gradients = &*gradients_;
    step_.gradients = &*gradients_;
    task.memory = gradient_after({{at::zeros({kSize}, at::kDouble), 1}});
  }

  // Runs a step and returns its gradient, which is not divided.
  at::Tensor step(const std::vector<Batch>& microbatches) { return gradient_after(microbatches).clone(); }

  Task task;
  [[nodiscard]] GraphCounts counts() const { return graphs_.counts(); }
  [[nodiscard]] std::int64_t num_kinds() const { return graphs_.num_kinds(); }
  static constexpr std::int64_t kSize = 3;

 private:
  at::Tensor gradient_after(const std::vector<Batch>& microbatches) {
    std::vector<at::Tensor> weights;
    step_.pack.clear();
    for (const Batch& each : microbatches) {
      auto microbatch = std::make_unique<Microbatch<Types>>(task, each);
      microbatch->build_inputs();
      microbatch->number = step_.pack.size();
      weights.push_back(at::full({}, static_cast<double>(weights.size())));
      microbatch->loss_weights = {{"own", weights.back()}};
      step_.pack.push_back(std::move(microbatch));
    }
    TrainingStage stage({.schedule = schedule_, .clock = clock_, .metrics = metrics_, .loss_means = metrics_}, stage_,
                        {}, step_);
    train_pack(executor_, {&stage}, step_, &graphs_);
    for (std::size_t i = 0; i < weights.size(); ++i) {  // a replay leaves these alone
      EXPECT_EQ(step_.pack[i]->number, i);
      EXPECT_TRUE(step_.pack[i]->loss_weights.at("own").is_same(weights[i]));
    }
    Optimizer optimizer{test::IdleOptimizer()};
    (void)gradients_->apply(optimizer, /*learning_rate=*/0.0);
    const at::Tensor gradient = task.parameter->stored().grad();
    gradients_->reset();
    return gradient;
  }

  DistContext context_;
  ModulePtr<RMSNorm> module_ = make_module<RMSNorm>(RMSNormConfig{.hidden_size = kSize});
  BuiltModelStage<Types> stage_;
  PipelineExecutor executor_{context_, schedule_of(GPipeScheduleConfig{})};
  std::optional<GradientManager> gradients_;
  JobSchedule schedule_{1};
  RandomClock clock_;
  MetricMap metrics_;
  StepMicrobatches step_;
  StepGraphs graphs_;
};

at::Tensor x(double value) { return at::arange(3, at::kDouble) + value; }
// All weights w are 1, so the gradient of a microbatch is x^exponent * x[0].
at::Tensor gradient(const std::vector<Batch>& microbatches) {
  at::Tensor sum = at::zeros({3}, at::kDouble);
  for (const auto& one : microbatches)
    sum = sum + (one.x.pow(one.exponent) * one.x.reshape({-1})[0]).reshape({-1, 3}).sum(0);
  return sum;
}

#define EXPECT_STEP(job, ...) EXPECT_TRUE(at::equal(job.step(__VA_ARGS__), gradient(__VA_ARGS__)))

using Ones = std::vector<Batch>;

constexpr int kOfKind = 2;  // graphs: a forward and a backward

TEST(StepGraphs, Runs_a_kind_as_usual_then_captures_it_and_replays_it) {
  Job job({.num_warm_up_steps = 2});
  job.task.log.clear();
  for (int i = 0; i < 5; ++i) EXPECT_STEP(job, Ones{{x(i + 1)}});
  EXPECT_THAT(job.task.log, ElementsAre("run", "capture"));  // the constructor of the job ran the other warm-up step
  EXPECT_EQ(job.counts().graphs, kOfKind);
  EXPECT_EQ(job.counts().replays, 4);
  EXPECT_EQ(job.counts().eager, 2);
}

TEST(StepGraphs, Overwrites_gradients_first_and_adds_to_them_then) {
  Job job({.num_warm_up_steps = 1});
  for (int i = 0; i < 6; ++i) EXPECT_STEP(job, Ones{{x(i + 1)}, {x(i + 2)}, {x(i * 5)}});
  EXPECT_EQ(job.counts().graphs, 2 * kOfKind);
  EXPECT_GT(job.counts().replays, 3 * 4);
}

TEST(StepGraphs, Captures_the_kinds_of_a_step_in_one_step) {
  Job job({.num_warm_up_steps = 2});
  job.task.log.clear();
  const auto squares = [](double value) { return Batch{.x = x(value), .exponent = 2}; };  // new kinds
  for (int i = 0; i < 4; ++i) EXPECT_STEP(job, Ones{squares(i), squares(i + 1), squares(i + 2), squares(i + 3)});
  std::vector<std::string> expected(2 * 4, "run");
  expected.insert(expected.end(), 2, "capture");
  EXPECT_EQ(job.task.log, expected);
}

TEST(StepGraphs, Runs_other_shapes_and_host_values_as_usual_in_between) {
  Job job({.num_warm_up_steps = 1, .max_graphs = 2});
  const at::Tensor matrix = at::arange(6, at::kDouble).view({2, 3}) + 1;
  for (int i = 0; i < 4; ++i) EXPECT_STEP(job, Ones{{x(i + 1)}, {x(i + 2)}});
  ASSERT_EQ(job.counts().graphs, 2 * kOfKind);
  const std::int64_t eager = job.counts().eager;
  for (int i = 0; i < 4; ++i) {
    EXPECT_STEP(job, Ones{{matrix}, {x(i + 2)}});
    EXPECT_STEP(job, Ones{{x(i + 1)}, {matrix}});
    EXPECT_STEP(job, Ones{{x(i + 1), /*exponent=*/2}, {x(i + 2)}});
  }
  EXPECT_EQ(job.counts().graphs, 2 * kOfKind);
  EXPECT_EQ(job.counts().eager - eager, 4 * 3);
}

TEST(StepGraphs, Gives_values_that_later_replays_leave_alone) {
  Job job({.num_warm_up_steps = 1});
  for (int i = 0; i < 4; ++i) (void)job.step({{x(i)}});
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(at::equal(job.task.doubled[1 + i], x(i) * 2)) << i;
    EXPECT_EQ(job.task.losses[1 + i].item<double>(), 3.0 * i + 3) << i;
  }
}

TEST(StepGraphs, Gives_states_that_the_work_writes_in_place_their_new_values) {
  Job job({.num_warm_up_steps = 1});
  for (int i = 0; i < 5; ++i) (void)job.step({{.x = x(i), .total = x(10)}});
  ASSERT_EQ(job.counts().replays, 4);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(job.task.totals[1 + i], x(10) + x(i))) << i;
}

TEST(StepGraphs, Forgets_kinds_that_do_not_come_back) {
  Job job({.num_warm_up_steps = 2});
  constexpr std::int64_t kMaxWaiting = detail::GraphKinds<int>::kMaxWaiting;
  for (std::int64_t rows = 2; rows < 2 * kMaxWaiting; ++rows) (void)job.step({{at::ones({rows, 3}, at::kDouble)}});
  EXPECT_EQ(job.num_kinds(), kMaxWaiting);
  for (int i = 0; i < 5; ++i) EXPECT_STEP(job, Ones{{x(i)}});
  EXPECT_EQ(job.counts().graphs, kOfKind);
}

TEST(StepGraphs, Remembers_no_kinds_without_graphs_when_there_are_all_graphs) {
  Job job({.num_warm_up_steps = 2, .max_graphs = 1});
  for (std::int64_t rows = 2; rows < 10; ++rows) (void)job.step({{at::ones({rows, 3}, at::kDouble)}});
  for (int i = 0; i < 4; ++i) (void)job.step({{x(i)}});
  for (std::int64_t rows = 2; rows < 10; ++rows) (void)job.step({{at::ones({rows, 3}, at::kDouble)}});
  EXPECT_EQ(job.counts().graphs, kOfKind);
  EXPECT_EQ(job.num_kinds(), 1);
}

TEST(StepGraphs, Captures_anew_when_the_memory_of_a_parameter_was_exchanged) {
  Job job({.num_warm_up_steps = 1});
  for (int i = 0; i < 3; ++i) EXPECT_STEP(job, Ones{{x(i)}});
  job.task.log.clear();
  const at::Tensor& weights = job.task.parameter->local();
  const void* const before = weights.const_data_ptr();
  OffloadedTensors asleep = offload_storages({weights.storage()});
  std::vector<at::Tensor> in_between;  // they occupy the memory that is free now
  for (int i = 0; i < 64; ++i) in_between.push_back(at::zeros(weights.sizes(), weights.options()));
  onload_tensors(asleep);
  ASSERT_NE(weights.const_data_ptr(), before);
  for (int i = 0; i < 3; ++i) EXPECT_STEP(job, Ones{{x(i)}});
  EXPECT_THAT(job.task.log, ElementsAre("run", "capture"));
  EXPECT_EQ(job.counts().graphs, kOfKind);
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

// Tensor-parallel ranks give memory back for larger memory when an evaluation has longer sequences: captured copies
// would read what is gone.
TEST(ModuleMemory, Has_changed_where_a_reduction_has_given_memory_back) {
  struct Reduction final : GradientReduction {
    void begin_pass(const StagePass& /*pass*/) override {}
    void end_pass() override {}
    void finish() override {}
    void clear() override {}
    void abandon() override {}
    std::int64_t num_closings() const override { return closings; }
    std::int64_t closings = 0;
  };
  struct Hook final : ModuleHook {
    explicit Hook(std::shared_ptr<Reduction> each) : reduction(std::move(each)) {}
    void before_forward(Module& /*module*/, const TensorRefs& /*inputs*/) override {}
    void after_forward(Module& /*module*/, const TensorRefs& /*outputs*/) override {}
    std::shared_ptr<GradientReduction> gradient_reduction() const override { return reduction; }
    std::shared_ptr<Reduction> reduction;
  };
  const auto module = make_module<RMSNorm>(RMSNormConfig{.hidden_size = 3});
  const auto reduction = std::make_shared<Reduction>();
  module->add_hook(std::make_shared<Hook>(reduction));
  module->materialize(at::kCPU);
  detail::ModuleMemory memory(*module);
  EXPECT_TRUE(memory.has_changed());
  EXPECT_FALSE(memory.has_changed());
  ++reduction->closings;
  EXPECT_TRUE(memory.has_changed());
  EXPECT_FALSE(memory.has_changed());
}

TEST(StepGraphs, Runs_tensors_of_another_device_as_usual) {
  Job job({.num_warm_up_steps = 1}, at::Device(at::kMeta));
  for (int i = 0; i < 4; ++i) EXPECT_STEP(job, Ones{{x(i)}});
  EXPECT_EQ(job.counts().graphs, 0);
  EXPECT_EQ(job.counts().replays, 0);
}

TEST(StepGraphs, Sums_replayed_gradients_over_ranks) {
  test::run_ranks(test::RankBackend::kThreads, 2, [](World& world) {
    Job job({.num_warm_up_steps = 1}, at::kCPU, &world);
    const auto rank = static_cast<double>(world.rank());
    for (int i = 0; i < 5; ++i) {
      const at::Tensor expected = gradient({{x(i)}, {x(i + 1)}, {x(i + 2)}, {x(i + 3)}});
      EXPECT_TRUE(at::equal(job.step({{x(i + 2 * rank)}, {x(i + 2 * rank + 1)}}), expected));
    }
    EXPECT_EQ(job.counts().graphs, 2 * kOfKind);
  });
}

struct Failing final : DeviceGraph {
  void capture(const std::function<void()>&) override { C10_THROW_ERROR(Error, "operation not permitted\nmore"); }
  void replay() override {}
};

TEST(StepGraphs, Says_what_to_do_about_work_that_cannot_be_captured) {
  const MakeDeviceGraph make_graph = detail::with_remedies([] { return std::make_unique<Failing>(); });
  EXPECT_THAT([&] { make_graph()->capture([] {}); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("[loop::cuda_graph]"), HasSubstr("operation not permitted The"),
                                              HasSubstr("set trainer.cuda_graph to null"))));
}

struct OpaqueTypes : Types {
  using State = std::shared_ptr<int>;
};

TEST(StepGraphs, Refuses_states_that_it_cannot_compare) {
  const TrainerConfig config{.cuda_graph = CudaGraphConfig()};
  EXPECT_NO_THROW(check_cuda_graph(config, Microbatch<Types>::kHasKey));
  EXPECT_THAT([&] { check_cuda_graph(config, Microbatch<OpaqueTypes>::kHasKey); },
              ThrowsMessage<ConfigError>(HasSubstr("expected inputs and state of tensors, numbers")));
}

}  // namespace
}  // namespace d9d::step_graphs_test
