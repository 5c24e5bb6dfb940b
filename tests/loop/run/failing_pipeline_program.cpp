// A job in pipeline stages in which one rank throws in a forward, a backward or the deferred weight gradients of a
// split backward, or which runs until it is stopped.
// tests/program/failing_pipelines_test.py runs it:
//
//   D9D_TEST_PROGRAM=failing_pipeline loop_test CONFIG.json key.path=value ...      FailingJobConfig below
#include <array>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/log.h"
#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/core/launch/launch.h"
#include "d9d/modules/module_hook.h"

#include "tests/loop/run/pipeline_job.h"
#include "tests/support/program.h"

namespace d9d::test::failing_pipeline_program {

enum class Fault : std::uint8_t { kNone, kForward, kBackward, kWeights };
constexpr auto enum_names(Fault) {
  return std::to_array<EnumName<Fault>>({{Fault::kNone, "none"},
                                         {Fault::kForward, "forward"},
                                         {Fault::kBackward, "backward"},
                                         {Fault::kWeights, "weights"}});
}

struct FailingJobConfig {
  LaunchConfig launch = {};
  DeviceMeshParameters mesh = {};
  TrainerConfig trainer = {};
  Fault fault = Fault::kNone;
  std::int64_t rank = 0;  // the rank of the job that throws
  std::int64_t step = 0;
  std::int64_t call = 0;  // index of the throwing call among those of the first layers of the rank's stages in the step

  static constexpr auto fields() {
    using Config = FailingJobConfig;
    return record<Config>(defaulted("launch", &Config::launch), defaulted("mesh", &Config::mesh),
                          required("trainer", &Config::trainer), defaulted("fault", &Config::fault),
                          defaulted("rank", &Config::rank), defaulted("step", &Config::step),
                          defaulted("call", &Config::call));
  }
};

// The identity. Adds a gradient of zeros to the leaf, by a product that may be deferred like weight gradients; if it
// was deferred, it calls in_weights.
struct LateGradient : torch::autograd::Function<LateGradient> {
  using InWeights = std::function<void()>;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& leaf,
                            const InWeights* in_weights) {
    context->saved_data["zeros"] = at::zeros_like(leaf);
    context->saved_data["in_weights"] = reinterpret_cast<std::int64_t>(in_weights);
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const std::array reads = {context->saved_data["zeros"].toTensor()};
    const auto* const in_weights = reinterpret_cast<const InWeights*>(context->saved_data["in_weights"].toInt());
    const auto product = [in_weights](auto tensors, const std::optional<GradientPlace>& place) {
      const bool has_waited = torch::autograd::get_current_node() == nullptr;  // no backward of autograd runs
      if (has_waited) (*in_weights)();
      if (!place) return tensors[0];
      place->put(tensors[0]);
      return at::Tensor();
    };
    return {grads[0], make_gradient(1, reads, product), at::Tensor()};
  }
};

// Throws in a forward, a backward or the weight gradients of the layers that it is added to.
class ThrowingHook final : public ModuleHook {
 public:
  ThrowingHook(const FailingJobConfig& config, const DistContext& context) : config_(config), context_(context) {}

  void begin_step(std::int64_t step) {
    step_ = step;
    num_calls_ = 0;
  }
  void before_forward(Module& /*module*/, const TensorRefs& /*inputs*/) override {
    if (config_.fault == Fault::kForward) reach();
  }
  void after_forward(Module& module, const TensorRefs& outputs) override {
    at::Tensor& output = outputs.front().get();
    if (!output.requires_grad()) return;
    if (config_.fault == Fault::kBackward) output.register_hook([this](const at::Tensor&) { reach(); });
    if (config_.fault != Fault::kWeights) return;
    output = LateGradient::apply(output, module.named_parameters().front().second->local(), &reach_);
  }

 private:
  void reach() {
    const bool is_here = context_.rank() == config_.rank && step_ == config_.step && num_calls_++ == config_.call;
    if (!is_here) return;
    write_line_to_stderr("the fault comes");
    throw StateError(cat("[test] rank ", config_.rank, " breaks as asked"));
  }

  const FailingJobConfig& config_;
  const DistContext& context_;
  const LateGradient::InWeights reach_ = [this] { reach(); };
  std::int64_t step_ = -1;
  std::int64_t num_calls_ = 0;
};

struct FailingProvider final : pipeline::Provider {
  FailingProvider(const pipeline::PipelineJob& pipeline_job, std::shared_ptr<ThrowingHook> throwing_hook)
      : Provider(pipeline_job), hook(std::move(throwing_hook)) {
    note = [](const std::string&, const at::Tensor&) {};
  }
  ModelStage<LanguageModelTypes> initialize_model_stage(const DistContext& context,
                                                        const PipelineStageInfo& stage) override {
    auto built = Provider::initialize_model_stage(context, stage);
    bool is_added = false;
    built.module->for_each_module([&](const std::string&, Module& module) {
      if (dynamic_cast<DecoderLayer*>(&module) == nullptr || std::exchange(is_added, true)) return;
      module.add_hook(hook);
    });
    return built;
  }
  const std::shared_ptr<ThrowingHook> hook;
};

struct FailingTask final : pipeline::Task {
  FailingTask(const DistContext& context, const pipeline::PipelineJob& pipeline_job,
              std::shared_ptr<ThrowingHook> throwing_hook)
      : Task(context, pipeline_job), hook(std::move(throwing_hook)) {}
  void register_events(const DistContext& context, EventBus& events) override {
    Task::register_events(context, events);
    events.subscribe(kTrainStepPre, [this](const TrainStep& now) { hook->begin_step(now.schedule.current_step()); });
  }
  const std::shared_ptr<ThrowingHook> hook;
};

void train(const FailingJobConfig& config, DistContext& context) {
  const pipeline::PipelineJob job{.fsdp = {}};
  const auto hook = std::make_shared<ThrowingHook>(config, context);
  FailingTask task(context, job, hook);
  FailingProvider provider(job, hook);
  AutoOptimizerProvider optimizer(job.optimizer);
  AutoLRSchedulerProvider lr_scheduler(PiecewiseConfig{
      .initial_multiplier = 1.0, .phases = {RestPhaseConfig{.target_multiplier = 0.5, .curve = LinearCurveConfig{}}}});
  (void)Trainer<LanguageModelTypes>(
      context, config.trainer,
      {.task = task, .model = provider, .data = provider, .optimizer = optimizer, .lr_scheduler = lr_scheduler})
      .train();
}

// The command line of this process, since a declared program gets no arguments.
std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

const TestProgram kFailingPipeline("failing_pipeline", [] {
  std::vector<std::string> arguments = own_arguments();
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  return launch<FailingJobConfig>(static_cast<int>(pointers.size()), pointers.data(), train);
});

}  // namespace d9d::test::failing_pipeline_program
