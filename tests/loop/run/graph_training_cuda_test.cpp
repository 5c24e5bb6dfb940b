// Training with forward and backward as CUDA graphs must equal training without graphs bit for bit.
#include <fstream>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gmock/gmock.h>

#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/data/pack/as_pack_stream.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/language_model/language_model_task.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/qwen3_dense/model.h"
#include "d9d/models/qwen3_moe/model.h"

#include "tests/support/cuda_test.h"
#include "tests/support/measured_series.h"

namespace d9d::graph_training_cuda_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const at::Device kGpu(at::kCUDA, 0);
constexpr std::int64_t kVocabulary = 512;
constexpr std::int64_t kPositions = 256;

struct Shape {
  std::int64_t num_sequences;
  std::int64_t length;
};
using Pack = std::vector<Shape>;  // microbatches of a step

// Equal numbers give equal tokens; some labels are ignored.
TokenBatch tokens(std::int64_t number, const Shape& shape) {
  const at::Tensor ids =
      (at::arange(shape.num_sequences * (shape.length + 1), at::kLong) * 2654435761 + number * 40503) % kVocabulary;
  const at::Tensor sequences = ids.view({shape.num_sequences, shape.length + 1});
  at::Tensor labels = sequences.narrow(1, 1, shape.length).clone(at::MemoryFormat::Contiguous);
  labels.narrow(1, 0, number % 5).fill_(kIgnoreIndex);
  return {.input_ids = sequences.narrow(1, 0, shape.length).contiguous(),
          .labels = labels,
          .position_ids = at::arange(shape.length, at::kLong).expand({shape.num_sequences, -1}).contiguous()};
}

struct Settings {
  bool has_experts = false;
  bool checkpoints = false;
  std::int64_t vocabulary = kVocabulary;
};

template <class Parameters>
Parameters sizes(const Settings& settings) {
  Parameters parameters;
  parameters.layer.hidden_size = 256;
  parameters.layer.intermediate_size = 256;
  parameters.layer.num_attention_heads = 4;
  parameters.layer.num_key_value_heads = 2;
  parameters.layer.head_dim = 64;
  parameters.num_hidden_layers = 2;
  parameters.max_position_ids = kPositions;
  parameters.split_vocab_size = {{"all", settings.vocabulary}};
  parameters.split_vocab_order = {"all"};
  return parameters;
}

ModulePtr<PreNormDecoder> make_backbone(const Settings& settings) {
  const DecoderStageOptions options{.checkpointing = settings.checkpoints};
  if (!settings.has_experts) return make_module<Qwen3DenseModel>(sizes<Qwen3DenseParameters>(settings), options);
  auto parameters = sizes<Qwen3MoEParameters>(settings);
  parameters.layer.num_experts = 8;
  parameters.layer.experts_top_k = 2;
  parameters.layer.router_auxiliary_loss_coefficient = 0.01;
  return make_module<Qwen3MoEModel>(parameters, options);
}

struct Data : DataProvider<TokenBatch> {
  struct Stream {
    std::optional<std::vector<TokenBatch>> next() {
      if (step == packs.size()) return std::nullopt;
      std::vector<TokenBatch> batches;
      for (const Shape& shape : packs[step]) batches.push_back(tokens(number++, shape));
      ++step;
      return batches;
    }
    std::optional<std::int64_t> total_steps() const { return std::ssize(packs); }
    nlohmann::json state() const { return step; }
    void load_state(const nlohmann::json&) {}
    std::vector<Pack> packs;
    std::size_t step = 0;
    std::int64_t number = 0;
  };
  explicit Data(std::vector<Pack> all) : packs(std::move(all)) {}
  std::unique_ptr<PackStream<TokenBatch>> build_pack_stream(const DistContext&, std::optional<std::int64_t>) override {
    return as_pack_stream<TokenBatch>(Stream{.packs = packs});
  }
  std::vector<Pack> packs;
};

struct Models : ModelProvider<LanguageModelTypes> {
  explicit Models(const Settings& all) : settings(all) {}
  ModelStage<LanguageModelTypes> initialize_model_stage(const DistContext&, const PipelineStageInfo&) override {
    backbone = make_backbone(settings);
    const auto model = make_decoder_for_causal_lm(backbone);
    model->to(at::kBFloat16);
    head = model->head.shared();
    return as_model_stage<LanguageModelTypes>(model);
  }
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    parallelize_decoder(context, *backbone, {head}, {});
  }
  Settings settings;
  ModulePtr<PreNormDecoder> backbone;
  std::shared_ptr<Module> head;
};

// A task in which each test breaks one rule, and which records memory at the end of steps.
struct Task : LanguageModelTask {
  using LanguageModelTask::LanguageModelTask;
  LossResult compute_loss(const Output& output, LanguageModelState& state, const JobSchedule& schedule) override {
    LossResult result = LanguageModelTask::compute_loss(output, state, schedule);
    if (on_loss) on_loss(result, schedule);
    return result;
  }
  void register_events(const DistContext&, EventBus& events) override {
    events.subscribe(kTrainStepPost, [this](const TrainStep&) {
      at::accelerator::synchronizeDevice(0);
      reserved.push_back(at::accelerator::getDeviceStats(0).reserved_bytes[0].current);
    });
  }
  std::function<void(LossResult&, const JobSchedule&)> on_loss;
  std::vector<std::int64_t> reserved;
};

struct Result {
  std::vector<nlohmann::json> log;  // of each step, without times
  std::map<std::string, at::Tensor> parameters;
  GraphCounts counts;
  std::vector<std::int64_t> reserved;
};

// All parts of a job that a test may change.
struct Job {
  explicit Job(std::vector<Pack> packs, const Settings& settings = {}) : data(std::move(packs)), models(settings) {
    config.run.name = "graphs";
    config.logging = {.period_steps = {EverySteps{1}}, .tracker = JsonlTrackerConfig{.path = log_file()}};
    config.gc.period_steps = {StepActionMode::kDisable};
    config.checkpointing.period_steps = {StepActionMode::kDisable};
    config.gradient_clipping.max_norm = 1.0;
  }

  Result train() {
    std::filesystem::remove(log_file());
    Trainer<LanguageModelTypes> trainer(
        context, config,
        {.task = task, .model = models, .data = data, .optimizer = optimizer, .lr_scheduler = lr_scheduler});
    (void)trainer.train();
    Result result{.counts = trainer.graph_counts(), .reserved = task.reserved};
    for (const auto& [name, tensor] : trainer.module().state_dict()) result.parameters[name] = tensor.cpu();
    std::ifstream file(log_file());
    for (std::string line; std::getline(file, line);) {
      result.log.push_back(nlohmann::json::parse(line));
      test::drop_measured(result.log.back());
    }
    return result;
  }

  static std::filesystem::path log_file() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    return std::filesystem::path(::testing::TempDir()) / (std::string("d9d_graphs_") + test->name() + ".jsonl");
  }

  DistContext context = DistContext({.world = one_rank_world(kGpu)});
  TrainerConfig config;
  Task task{context};
  Data data;
  Models models;
  AutoOptimizerProvider optimizer{AdamWConfig{.lr = 1e-3}};
  AutoLRSchedulerProvider lr_scheduler{PiecewiseConfig{
      .initial_multiplier = 1.0, .phases = {RestPhaseConfig{.target_multiplier = 0.5, .curve = LinearCurveConfig{}}}}};
};

class GraphTrainingCuda : public test::CudaTest {
 protected:
  void SetUp() override {
    test::CudaTest::SetUp();
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false); }

  // Trains without and with graphs and returns the counts of the latter.
  static GraphCounts expect_same_bits(const std::vector<Pack>& packs, const Settings& settings,
                                      const std::function<void(TrainerConfig&)>& change = nullptr) {
    Job usual(packs, settings), graphs(packs, settings);
    if (change) change(usual.config), change(graphs.config);
    graphs.config.cuda_graph = CudaGraphConfig{.num_warm_up_steps = 2};
    const Result expected = usual.train(), actual = graphs.train();
    EXPECT_EQ(actual.log.size(), packs.size());
    for (std::size_t i = 0; i < expected.log.size() && i < actual.log.size(); ++i) {
      EXPECT_EQ(actual.log[i], expected.log[i]) << "step " << i;
    }
    EXPECT_EQ(actual.parameters.size(), expected.parameters.size());
    for (const auto& [name, values] : expected.parameters) {
      EXPECT_TRUE(at::equal(actual.parameters.at(name), values)) << name;
    }
    EXPECT_EQ(expected.counts.replays, 0);
    return actual.counts;
  }
};

const std::vector<Pack> kTwoMicrobatches(6, Pack{{2, 128}, {2, 128}});

TEST_F(GraphTrainingCuda, Of_a_dense_model_over_two_microbatches) {
  const GraphCounts counts = expect_same_bits(kTwoMicrobatches, {});
  EXPECT_EQ(counts.graphs, 2 * 2);  // a forward and a backward of each kind
  EXPECT_EQ(counts.replays, 8);
  EXPECT_EQ(counts.eager, 4);
}

TEST_F(GraphTrainingCuda, Of_experts_with_their_statistics) {
  const GraphCounts counts = expect_same_bits(kTwoMicrobatches, {.has_experts = true});
  EXPECT_EQ(counts.replays, 8);
}

TEST_F(GraphTrainingCuda, With_checkpointing_and_float32_gradients) {
  for (const bool has_experts : {false, true}) {
    SCOPED_TRACE(has_experts);
    const GraphCounts counts =
        expect_same_bits(kTwoMicrobatches, {.has_experts = has_experts, .checkpoints = true},
                         [](TrainerConfig& config) { config.gradient_manager.grad_dtype = Dtype::kFloat32; });
    EXPECT_EQ(counts.replays, 8);
  }
}

TEST_F(GraphTrainingCuda, With_stochastic_rounding) {
  Job usual(kTwoMicrobatches), graphs(kTwoMicrobatches);
  graphs.config.cuda_graph = CudaGraphConfig{};
  for (Job* job : {&usual, &graphs}) job->optimizer = AutoOptimizerProvider(StochasticAdamWConfig{.lr = 1e-3});
  const Result expected = usual.train(), actual = graphs.train();
  for (const auto& [name, values] : expected.parameters) {
    EXPECT_TRUE(at::equal(actual.parameters.at(name), values)) << name;
  }
}

TEST_F(GraphTrainingCuda, Where_shapes_change_in_between) {
  std::vector<Pack> packs(8, Pack{{2, 128}, {2, 128}});
  packs[4] = {{1, 64}, {2, 128}};
  packs[5] = {{2, 128}, {3, 96}, {2, 128}};
  packs[6] = {{1, 33}};
  for (const bool has_experts : {false, true}) {
    SCOPED_TRACE(has_experts);
    const GraphCounts counts = expect_same_bits(packs, {.has_experts = has_experts});
    EXPECT_EQ(counts.graphs, 2 * 2);            // a forward and a backward of each kind
    EXPECT_EQ(counts.replays, 16 - 2 * 2 - 3);  // minus the warm-up of both kinds, and microbatches of other shapes
  }
}

TEST_F(GraphTrainingCuda, Takes_memory_once_and_gives_it_back) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  std::int64_t in_run = 0;
  {
    Job job(std::vector<Pack>(20, Pack{{32, 256}, {32, 256}}), {.vocabulary = 32768});
    job.config.cuda_graph = CudaGraphConfig{};
    const Result result = job.train();
    ASSERT_EQ(result.reserved.size(), 20);
    EXPECT_EQ(result.reserved[4], result.reserved[19]);
    in_run = result.reserved[19];
  }
  at::accelerator::synchronizeDevice(0);
  c10::getDeviceAllocator(at::kCUDA)->emptyCache();
  const auto after = at::accelerator::getDeviceStats(0);
  EXPECT_LT(after.reserved_bytes[0].current - after.allocated_bytes[0].current, 64 * kMiB);  // no graph pool is left
  EXPECT_GT(in_run - after.reserved_bytes[0].current, 256 * kMiB);                           // except workspaces
}

TEST_F(GraphTrainingCuda, Says_that_a_task_waits_for_the_device) {
  Job job(kTwoMicrobatches);
  job.config.cuda_graph = CudaGraphConfig{};
  job.task.on_loss = [](LossResult& result, const JobSchedule&) { (void)result.loss.item<double>(); };
  EXPECT_THAT([&] { (void)job.train(); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("[loop::cuda_graph] expected forward, loss and backward"),
                                              HasSubstr("capturing"), HasSubstr("reads a value of it"))));
  EXPECT_EQ(expect_same_bits(kTwoMicrobatches, {}).replays, 8);  // the device works as before
}

TEST_F(GraphTrainingCuda, Refuses_a_loss_that_depends_on_the_step) {
  Job job(kTwoMicrobatches);
  job.config.cuda_graph = CudaGraphConfig{};
  job.task.on_loss = [](LossResult& result, const JobSchedule& schedule) {
    result.loss = result.loss * static_cast<double>(1 + schedule.current_step());
  };
  EXPECT_THAT([&] { (void)job.train(); }, ThrowsMessage<ConfigError>(HasSubstr("asks for the step")));
}

TEST_F(GraphTrainingCuda, Refuses_random_layers) {
  Job job(kTwoMicrobatches);
  job.config.cuda_graph = CudaGraphConfig{};
  job.task.on_loss = [&](LossResult&, const JobSchedule&) { (void)job.models.backbone->random_clock(); };
  EXPECT_THAT([&] { (void)job.train(); }, ThrowsMessage<ConfigError>(HasSubstr("a random layer")));
}

}  // namespace
}  // namespace d9d::graph_training_cuda_test
