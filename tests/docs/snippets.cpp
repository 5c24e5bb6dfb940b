// Code that is shown in documentation pages but not part of a program: compiled with the library, never run.
// tools/check_snippets.py checks that the pages agree with it.
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include "d9d/base/config/load_config.h"
#include "d9d/base/io/append_file.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/dtensor/redistribute.h"
#include "d9d/core/tree/tree.h"
#include "d9d/data/build/config.h"
#include "d9d/data/build/make_pack_stream.h"
#include "d9d/data/pack/as_pack_stream.h"
#include "d9d/data/sequences/token_dataset.h"
#include "d9d/loop/config/aliases.h"
#include "d9d/loop/language_model/language_model_task.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/loop/task/inference_task.h"
#include "d9d/loop/task/shard_over_data.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/metrics/reduce_metrics.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/mapped_sources.h"
#include "d9d/model_state/mapper/leaves.h"
#include "d9d/model_state/write_model_state.h"
#include "d9d/models/qwen3_dense/huggingface.h"
#include "d9d/models/qwen3_moe/huggingface.h"
#include "d9d/optim/adamw.h"
#include "d9d/parallelism/fsdp/parallelize_fsdp.h"
#include "d9d/parallelism/replicate/parallelize_replicate.h"
#include "d9d/testing/ranks.h"

namespace pages {

using d9d::DataConfig;
using d9d::DeviceMeshParameters;
using d9d::TrainerConfig;

// docs/configuration.md
struct PretrainConfig {
  DeviceMeshParameters mesh = {};
  DataConfig data = {};
  TrainerConfig trainer = {};
  static constexpr auto fields() {
    using Config = PretrainConfig;
    return d9d::record<Config>(d9d::defaulted("mesh", &Config::mesh), d9d::required("data", &Config::data),
                               d9d::required("trainer", &Config::trainer));
  }
};

PretrainConfig read_configuration(int argc, char** argv) {
  const auto config = d9d::load_config<PretrainConfig>(argc, argv, d9d::apply_0_16_aliases);
  return config;
}

// docs/data.md
template <class Step>
void read_packs(const d9d::DistContext& context, const Step& step) {
  std::shared_ptr<const d9d::TokenDataset> dataset = d9d::text_dataset({"corpus/*.txt"}, /*sequence_length=*/1024);
  auto stream = d9d::make_pack_stream<d9d::TokenBatch>(
      context, dataset, d9d::collate_fixed,
      {.global_batch_size = 64, .microbatch_size = 8, .num_workers = 4, .shuffle = true}, {.seed = 1337});
  while (auto pack = stream->next()) step(*pack);  // on two ranks: four microbatches of eight sequences
}
template void read_packs(const d9d::DistContext&, const std::function<void(const std::vector<d9d::TokenBatch>&)>&);

using Batch = d9d::TokenBatch;
struct TokenBudgetStream {
  std::optional<std::vector<Batch>> next();         // nullopt: no data left
  std::optional<std::int64_t> total_steps() const;  // counted from the start; nullopt: unknown or endless
  nlohmann::json state() const;                     // position after what next() last returned
  void load_state(const nlohmann::json& state);
};
static_assert(d9d::MicrobatchPackStream<TokenBudgetStream, Batch>);

// docs/distributed.md
void shard_by_hand(const d9d::DeviceMesh& dense, const d9d::ModulePtr<d9d::Linear>& embedding,
                   const std::vector<d9d::ModulePtr<d9d::Linear>>& layers) {
  const auto fsdp = std::make_shared<d9d::FsdpRuntime>(d9d::FsdpConfig{});
  const std::vector<d9d::FsdpAxes> axes = {
      {.mesh = dense, .shard_axis = "dp_cp_shard", .replicate_axes = {"dp_replicate"}}};
  d9d::parallelize_fsdp(fsdp, {.name = "embedding", .modules = {embedding.shared()}, .axes = axes});
  for (const auto& layer : layers) {
    d9d::parallelize_fsdp(fsdp, {.name = "layer", .modules = {layer.shared()}, .axes = axes});
  }
}

void replicate_by_hand(const d9d::DeviceMesh& dense, const d9d::ModulePtr<d9d::Linear>& model) {
  // or, every rank holds everything:
  d9d::parallelize_replicate(*model, dense, {"dp_replicate", "dp_cp_shard", "cp_replicate"});
}

using namespace d9d;  // as a test of the library is written

void test_on_ranks() {
  d9d::testing::run_ranks({.data_parallel_shard = 4},
                          [](const d9d::DistContext& context) { EXPECT_EQ(context.data_parallel_size(), 4); });
}

void lay_out(const at::Tensor& full, const std::shared_ptr<World>& world) {
  const d9d::DeviceMesh mesh("example", {{"dp", 2}, {"tp", 2}}, world);
  const d9d::DTensor weight = d9d::distribute(full, mesh, {d9d::Replicate{}, d9d::Shard{0}});  // every rank has `full`
  const d9d::DTensor columns = d9d::redistribute(weight, {d9d::Replicate{}, d9d::Shard{1}});   // one all_to_all over tp
  const at::Tensor again = d9d::full_tensor(columns);                                          // bit for bit `full`
}

d9d::DTensor with_gradients(const d9d::DTensor& shards, const at::Tensor& up, const at::Tensor& down,
                            const d9d::DeviceMesh& mesh, const std::vector<std::int64_t>& shape) {
  // Shards of the sequence become the whole sequence; then each rank uses its rows of `up` and its columns of `down`.
  // Forward: all_gather. Backward: reduce_scatter.
  const d9d::DTensor x =
      d9d::redistribute(shards, {d9d::Replicate{}}, {.gradient_placements = d9d::Placements{d9d::Partial{}}});
  const at::Tensor summand = at::linear(at::linear(x.local, up).tanh(), down);
  // And the other way round.
  const d9d::DTensor y = d9d::redistribute(
      {.local = summand, .mesh = mesh, .placements = {d9d::Partial{}}, .global_shape = shape}, {d9d::Shard{0}});
  return y;
}

// docs/huggingface.md
void load(const d9d::ModulePtr<d9d::Linear>& model) {
  const d9d::HuggingFaceDirectory directory("Qwen3-0.6B");
  const auto parameters = d9d::qwen3_dense_parameters_from_huggingface(directory.read_config());
  const auto mapper = d9d::qwen3_dense_from_huggingface(parameters, d9d::CausalLMHeadConfig{}, directory.names());
  const d9d::LoadReport report = d9d::load_model_state(*model, mapper, d9d::tensors_of(directory));
}

void write(const d9d::ModulePtr<d9d::Linear>& model, const d9d::Qwen3MoEParameters& parameters,
           const d9d::HeadConfig& head, d9d::Dtype dtype, const std::filesystem::path& path) {
  const auto mapper = d9d::qwen3_moe_to_huggingface(parameters, head);
  d9d::write_huggingface_directory(path, d9d::qwen3_moe_huggingface_config(parameters, head, dtype),
                                   d9d::mapped_sources(mapper, d9d::tensors_of(model->state_dict())));
}

// docs/model_design.md
struct FeedForward : d9d::Module {
  explicit FeedForward(std::int64_t size) : up(register_module<d9d::Linear>("up", d9d::LinearConfig{size, 4 * size})) {}
  const d9d::ModulePtr<d9d::Linear> up;
};

void initialise_late() {
  auto model = make_module<FeedForward>(64);  // shapes, no memory
  model->materialize(at::kCPU);               // storage with undefined values
  model->reset_parameters(/*base_seed=*/42);  // values
  model->check_initialized();                 // StateError that lists what has no value
}

// docs/training.md
void freeze_embeddings(d9d::Module& stage) { stage.set_requires_grad(false); }

struct FreezingTask final : d9d::LanguageModelTask {
  using LanguageModelTask::LanguageModelTask;
  void register_events(const d9d::DistContext&, d9d::EventBus& events) override {
    events.subscribe(d9d::kTrainModelStagesReady, [](const d9d::ModelStagesReady& ready) {
      for (d9d::Module& stage : ready.modules) freeze_embeddings(stage);
    });
  }
};

// docs/training.md
void use_the_devices() {}

void lend_devices(d9d::TrainerBase& trainer) {
  trainer.events().subscribe(d9d::kTrainStepPost, [&](const d9d::TrainStep& step) {
    if ((step.schedule.current_step() + 1) % 10 != 0) return;
    trainer.sleep({d9d::SleepTag::kTensorStates, d9d::SleepTag::kComms});
    use_the_devices();
    trainer.wake();
  });
}

// docs/debugging.md
class ActivationStatistics final : public d9d::ModuleHook {
 public:
  explicit ActivationStatistics(d9d::Logger log) : log_(std::move(log)) {}
  void before_forward(d9d::Module&, const d9d::TensorRefs&) override {}
  void after_forward(d9d::Module& module, const d9d::TensorRefs& outputs) override {
    if (d9d::is_recomputing()) return;  // a checkpoint runs the modules below it a second time
    for (const at::Tensor& output : outputs) {
      if (!output.defined() || !output.is_floating_point() || output.numel() == 0) continue;
      const at::Tensor values = output.detach().to(at::kDouble);
      log_.info(module.canonical_name(), ": rms ", values.square().mean().sqrt().item<double>(), ", largest ",
                values.abs().max().item<double>());
    }
  }

 private:
  d9d::Logger log_;
};

class FiniteOutputs final : public d9d::ModuleHook {
 public:
  void before_forward(d9d::Module&, const d9d::TensorRefs&) override {}
  void after_forward(d9d::Module&, const d9d::TensorRefs& outputs) override {
    for (const at::Tensor& output : outputs) {
      D9D_CHECK(!output.defined() || output.isfinite().all().item<bool>(), d9d::StateError, "output is not finite");
    }
  }
};

struct WatchedTask final : d9d::LanguageModelTask {
  using LanguageModelTask::LanguageModelTask;
  void register_events(const d9d::DistContext&, d9d::EventBus& events) override {
    events.subscribe(d9d::kTrainModelStagesReady, [](const d9d::ModelStagesReady& ready) {
      const auto hook = std::make_shared<FiniteOutputs>();
      for (d9d::Module& stage : ready.modules) {
        stage.for_each_module([&](const std::string&, d9d::Module& module) { module.add_hook(hook); });
      }
    });
  }
};

template <class MyTypes>
void train_with_anomaly_mode(d9d::Trainer<MyTypes>& trainer) {
  const torch::autograd::DetectAnomalyGuard anomaly;  // of the process: of all ranks that are threads
  trainer.train();
}

// docs/training.md
void stop_early(d9d::EventBus& events) {
  using d9d::FinishedStep, d9d::kTrainStepPost;
  events.subscribe(kTrainStepPost, [](const FinishedStep& step) {
    if (step.loss < 0.1) step.stop.request("the loss is below 0.1");
  });
}
void stop_when_evaluations_get_no_better(d9d::EventBus& events) {
  using d9d::FinishedEvaluation, d9d::kTrainEvaluationPost;
  double best = std::numeric_limits<double>::infinity();
  int num_worse = 0;
  events.subscribe(kTrainEvaluationPost, [best, num_worse](const FinishedEvaluation& evaluation) mutable {
    const double loss = evaluation.value("loss");
    num_worse = loss < best ? 0 : num_worse + 1;
    best = std::min(best, loss);
    if (num_worse >= 3) evaluation.stop.request("three evaluations without a better loss");
  });
}

// docs/questions.md
struct PartlyFrozen : d9d::Module {
  PartlyFrozen()
      : backbone(register_module<FeedForward>("backbone", 64)),
        head(register_module<d9d::Linear>("head", d9d::LinearConfig{64, 8})) {}
  const d9d::ModulePtr<FeedForward> backbone;
  const d9d::ModulePtr<d9d::Linear> head;
};

template <class MyTypes>
struct FreezingProvider : d9d::ModelProvider<MyTypes> {
  void parallelize_model_stage(const d9d::DistContext& context, const d9d::PipelineStageInfo&, d9d::Module&) override {
    model->backbone->set_requires_grad(false);  // before, never after, the model is sharded
    d9d::shard_over_data(context, model.shared(), {model->backbone.shared(), model->head.shared()});
  }
  d9d::ModulePtr<PartlyFrozen> model;
};

// Matrices by one optimiser, all other parameters by AdamW.
template <class Matrices>
class TwoOptimizers {
 public:
  TwoOptimizers(Matrices matrices, d9d::AdamW others) : matrices_(std::move(matrices)), others_(std::move(others)) {}
  double learning_rate() const { return matrices_.learning_rate(); }
  void step(double learning_rate) {
    const double factor = learning_rate / matrices_.learning_rate();  // of the schedule
    matrices_.step(learning_rate);
    others_.step(factor * others_.learning_rate());
  }
  std::map<std::string, d9d::DTensor> state_dict() const {
    auto state = matrices_.state_dict();
    state.merge(others_.state_dict());  // names of entries begin with those of parameters: none is in both
    return state;
  }

 private:
  Matrices matrices_;
  d9d::AdamW others_;
};
static_assert(d9d::OptimizerProtocol<TwoOptimizers<d9d::AdamW>>);

// docs/own_model.md
// What a stage hands to the next, [B, 64].
struct Hidden {
  at::Tensor x;
  static constexpr auto fields() { return d9d::record<Hidden>(d9d::field("x", &Hidden::x)); }
};

struct StackTypes {
  using Batch = at::Tensor;
  using Input = at::Tensor;  // [B, 64]
  using Transfer = Hidden;
  using Shared = std::monostate;
  using Output = at::Tensor;
  using State = std::monostate;
};

struct Stack : d9d::Module {
  explicit Stack(const d9d::PipelineStageInfo& of_stage) : stage(of_stage) {
    const d9d::LayerRange range = d9d::layers_of_stage({.num_layers = 12}, stage);
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      layers.push_back(register_module<d9d::Linear>(d9d::cat("layer", i), d9d::LinearConfig{64, 64}));
    }
  }
  std::variant<Hidden, at::Tensor> forward(const at::Tensor& input, const std::monostate& shared) const {
    return forward(Hidden{input}, shared);
  }
  std::variant<Hidden, at::Tensor> forward(const Hidden& arrived, const std::monostate&) const {
    at::Tensor x = arrived.x;
    for (const auto& layer : layers) x = x + at::tanh(layer(x));
    if (stage.is_last()) return x;
    return Hidden{x};
  }
  Hidden stage_transfer(const at::Tensor& input, d9d::StageBoundary) const {
    return {at::empty(input.sizes(), input.options().device(at::kMeta))};
  }

  const d9d::PipelineStageInfo stage;
  std::vector<d9d::ModulePtr<d9d::Linear>> layers;
};

struct StackProvider : d9d::ModelProvider<StackTypes> {
  d9d::ModelStage<StackTypes> initialize_model_stage(const d9d::DistContext&,
                                                     const d9d::PipelineStageInfo& stage) override {
    model = d9d::make_module<Stack>(stage);
    return d9d::as_model_stage<StackTypes>(model);
  }
  void parallelize_model_stage(const d9d::DistContext& context, const d9d::PipelineStageInfo&, d9d::Module&) override {
    std::vector<std::shared_ptr<d9d::Module>> units;
    for (const auto& layer : model->layers) units.push_back(layer.shared());
    d9d::shard_over_data(context, model.shared(), units);
  }
  d9d::ModulePtr<Stack> model;
};
static_assert(!std::is_abstract_v<StackProvider>);

// docs/inference.md
// The mean of the model's outputs over all samples, on any number of ranks, however often the job is started.
struct MeanOutput : d9d::InferenceTask<StackTypes> {
  explicit MeanOutput(const d9d::DistContext& dist_context) : context(dist_context) {}
  d9d::ForwardInputs<StackTypes> build_forward_inputs(const at::Tensor& batch) override {
    return {.input = batch, .num_tokens = batch.size(0)};
  }
  void process_outputs(const at::Tensor& output, const std::monostate&) override {
    sum.update(output);
    count.update(at::full({}, output.numel(), output.options().dtype(at::kDouble)));
  }
  // What the packs before the saved position have given: a job that continues counts each sample once.
  nlohmann::json state() const override { return {sum.compute().item<double>(), count.compute().item<double>()}; }
  void load_state(const std::vector<nlohmann::json>& of_ranks) override {
    if (!context.is_main_process()) return;  // the sums of all ranks go to one
    for (const nlohmann::json& each : of_ranks) {
      sum.update(at::full({}, each[0].get<double>(), at::device(context.device()).dtype(at::kDouble)));
      count.update(at::full({}, each[1].get<double>(), at::device(context.device()).dtype(at::kDouble)));
    }
  }
  void finalize() override {
    d9d::reduce_metrics({&sum, &count}, d9d::metric_ranks(context));
    if (context.is_main_process()) context.log().info("mean output ", (sum.compute() / count.compute()).item<double>());
  }
  const d9d::DistContext& context;
  d9d::SumMetric sum, count;
};
static_assert(!std::is_abstract_v<MeanOutput>);

}  // namespace pages
