// Trains, saves and exports a language model in pipeline stages, in float64. Returns what is logged, and all tensors.
//
// Example
//   const Trained trained = train({.mesh = {.pipeline_parallel = 2}, .schedule = ZeroBubbleVScheduleConfig{}});
//   expect_same(trained, train({}));                                  // of the model in one piece, on one rank
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/core/dtensor/redistribute.h"
#include "d9d/data/pack/as_pack_stream.h"
#include "d9d/loop/language_model/auto_data_provider.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/language_model/language_model_task.h"
#include "d9d/loop/language_model/staged_decoder.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/metrics/compose_metric.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/write_model_state.h"
#include "d9d/models/decoder/generate.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/qwen3_dense/huggingface.h"
#include "d9d/models/qwen3_dense/model.h"
#include "d9d/models/qwen3_moe/model.h"
#include "d9d/parallelism/fsdp/fsdp_runtime.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

#include "tests/support/decoder_families.h"
#include "tests/support/measured_series.h"
#include "tests/support/memory_peak.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerances.h"

namespace d9d::test::pipeline {

inline constexpr std::int64_t kNumMicrobatches = 8;  // of a step, over all ranks
inline constexpr std::int64_t kNumSteps = 3;

// The rows of a microbatch: a sequence, or several documents, one per row or packed into one row.
enum class Rows : std::uint8_t { kSequence, kDocuments, kPacked };

struct PipelineJob {
  DeviceMeshParameters mesh = {};
  PipelineScheduleConfig schedule = {};
  FsdpConfig fsdp = {};
  ContextParallelConfig context_parallel = {};
  bool checkpoints = false;
  bool has_experts = false;
  double bias_update_rate = 0.0;  // of experts
  bool ties_embeddings = false;
  bool freezes_first = false;  // embedding and the first two layers
  std::optional<PeftConfig> adapters = {};
  VocabularyContextPtr vocabulary = nullptr;  // of the head; null: the default
  Rows rows = Rows::kSequence;
  std::function<std::vector<TokenBatch>(std::int64_t step)> microbatches = nullptr;  // over all ranks; null: of `rows`
  std::optional<DataConfig> data = {};                                               // one pass of it instead
  std::int64_t num_steps = kNumSteps;
  std::int64_t log_period = 1;
  bool logs_layer_norms = false;                  // in each step
  std::vector<std::int64_t> evaluated = {};       // microbatches of each pack, over all ranks, of a set; empty: no set
  std::optional<DataConfig> evaluated_data = {};  // one pass of it instead
  std::string save_dir = {};                      // in folder(); empty: nothing is saved
  std::int64_t save_period = 1;
  ModelStageFactoryConfig model = {};
  std::optional<std::int64_t> base_seed = {};
  std::string export_to = {};           // in folder()
  std::set<std::string> exported = {};  // empty: what the provider exports by default
  std::string begins_as = {};           // a checkpoint in folder() that all tensors must equal at first; empty: none
  bool is_huggingface = false;          // for exports and source_checkpoint; dense models only
  at::ScalarType dtype = at::kDouble;
  OptimizerConfig optimizer = AdamWConfig{.lr = 1e-2};
  std::optional<AveragedWeightsConfig> ema = {};
  std::optional<std::int64_t> step_timeout = {};
  OptimizerProvider* own_optimizer = nullptr;  // in place of `optimizer`
  RankBackend backend = RankBackend::kThreads;
  std::optional<Dtype> gradient_dtype = {};
  bool is_on_gpu = false;  // one rank, in this process
  bool has_graphs = false;
  std::optional<MemoryBudgetConfig> memory_budget = {};
  bool keeps_start = true;  // copies what Trained::at_start says
  SleepTags sleeps = {};    // the job sleeps before train(), after each step and after train(); empty: never
  // Called with each stage that the provider has built, including measured ones; null: nothing.
  std::function<void(const PipelineStageInfo&, Module&)> on_stage = nullptr;
  std::function<void(LossResult&)> on_loss = nullptr;  // called with each loss of the last stage
  std::function<void()> on_updated = nullptr;          // called after each of the optimiser's steps
  std::vector<std::int64_t> prompt = {};               // continued by the trained model; empty: nothing
  std::function<void(Module&)> on_trained = nullptr;   // called with the rank's module before `prompt` is continued
  // The custom schedule of a rank, in place of `schedule`; null: none.
  std::function<PipelineSchedule(std::int64_t rank)> custom_schedule = nullptr;
};

// A sequence of 8, 12 or 16 positions; a fifth of the labels do not count.
inline TokenBatch microbatch(std::int64_t step, std::int64_t number) {
  const std::int64_t length = 8 + 4 * ((step + number) % 3), seed = 1 + step * kNumMicrobatches + number;
  const at::Tensor position = at::arange(length);
  const at::Tensor labels = (position * position * 3 + 5 * seed).remainder(20).unsqueeze(0);
  return {.input_ids = (position * 7 * seed + position + seed).remainder(20).unsqueeze(0),
          .labels = labels.masked_fill(labels.remainder(5) == 0, kIgnoreIndex),
          .position_ids = position.unsqueeze(0)};
}

// Two or three documents of 3 to 6 positions, all of one length.
inline TokenBatch documents(std::int64_t step, std::int64_t number, bool are_packed) {
  std::vector<TokenSample> samples;
  for (std::int64_t i = 0; i < 2 + number % 2; ++i) {
    const at::Tensor position = at::arange(4 + (step + number) % 4);
    samples.push_back(next_token_sample((position * position * 3 + 5 * step + 7 * number + 11 * i).remainder(20)));
  }
  if (!are_packed) return collate_padded(samples);
  const auto joined = [&](at::Tensor TokenSample::*member) {
    std::vector<at::Tensor> parts;
    for (const TokenSample& sample : samples) parts.push_back(sample.*member);
    return at::cat(parts);
  };
  TokenSample packed{.input_ids = joined(&TokenSample::input_ids),
                     .labels = joined(&TokenSample::labels),
                     .position_ids = joined(&TokenSample::position_ids)};
  for (const TokenSample& sample : samples) packed.packed_lengths.push_back(sample.input_ids.size(0));
  return collate_fixed(std::vector{packed});
}

struct Stream {
  std::optional<std::vector<TokenBatch>> next() {
    std::vector<TokenBatch> pack;
    if (microbatches) {
      const std::vector<TokenBatch> all = microbatches(step++);
      const std::int64_t share = std::ssize(all) / num_ranks;
      pack.assign(all.begin() + rank * share, all.begin() + (rank + 1) * share);
      return pack;
    }
    const std::int64_t share = kNumMicrobatches / num_ranks;
    for (std::int64_t i = rank * share; i < (rank + 1) * share; ++i) {
      pack.push_back(rows == Rows::kSequence ? microbatch(step, i) : documents(step, i, rows == Rows::kPacked));
    }
    ++step;
    return pack;
  }
  std::optional<std::int64_t> total_steps() const { return std::nullopt; }
  nlohmann::json state() const { return step; }
  void load_state(const nlohmann::json& state) { step = state; }

  std::int64_t rank = 0, num_ranks = 1, step = 0;
  Rows rows = Rows::kSequence;
  std::function<std::vector<TokenBatch>(std::int64_t step)> microbatches = nullptr;
};

// The packs of PipelineJob::evaluated. Data-parallel ranks get unequally many microbatches.
struct EvaluatedStream {
  std::optional<std::vector<TokenBatch>> next() {
    std::vector<TokenBatch> pack;
    while (pack.empty() && step < std::ssize(packs)) {  // a rank without microbatches has fewer packs
      for (std::int64_t i = rank; i < packs[static_cast<std::size_t>(step)]; i += num_ranks) {
        pack.push_back(microbatch(100 + step, i));
      }
      ++step;
    }
    return pack.empty() ? std::optional<std::vector<TokenBatch>>() : pack;
  }
  std::optional<std::int64_t> total_steps() const { return std::nullopt; }
  nlohmann::json state() const { return step; }
  void load_state(const nlohmann::json& state) { step = state; }

  std::int64_t rank = 0, num_ranks = 1, step = 0;
  std::vector<std::int64_t> packs;
};

inline SmallDecoder sizes_of(const PipelineJob& job) {
  return {.num_layers = 8,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .ties_embeddings = job.ties_embeddings,
          .auxiliary_loss_coefficient = 0.1,
          .bias_update_rate = job.bias_update_rate};
}

inline std::unique_ptr<PackStream<TokenBatch>> packs_of(const DataConfig& data, const DistContext& context,
                                                        const PipelineJob& job) {
  const SmallDecoder sizes = sizes_of(job);
  const TokenLimits limits{.vocabulary_size = sizes.vocabulary_size, .max_positions = sizes.max_position_ids};
  return token_data_provider(data, limits, /*base_seed=*/1).build_pack_stream(context, std::nullopt);
}

struct EvaluatedData : DataProvider<TokenBatch> {
  explicit EvaluatedData(const PipelineJob& pipeline_job) : job(pipeline_job) {}
  std::unique_ptr<PackStream<TokenBatch>> build_pack_stream(const DistContext& context,
                                                            std::optional<std::int64_t>) override {
    if (job.evaluated_data) return packs_of(*job.evaluated_data, context, job);
    return as_pack_stream<TokenBatch>(EvaluatedStream{
        .rank = context.data_parallel_rank(), .num_ranks = context.data_parallel_size(), .packs = job.evaluated});
  }
  const PipelineJob& job;
};

// Counts the losses of this rank, and in metrics the microbatches of all, and which step was the last.
struct Task : LanguageModelTask {
  Task(const DistContext& context, const PipelineJob& pipeline_job) : LanguageModelTask(context), job(pipeline_job) {}
  LossResult compute_loss(const Output& output, LanguageModelState& state, const JobSchedule& schedule) override {
    ++num_losses;
    if (!job.has_graphs) step = schedule.current_step();  // a captured loss may not ask for it
    LossResult result = LanguageModelTask::compute_loss(output, state, schedule);
    if (job.on_loss) job.on_loss(result);
    return result;
  }
  MetricMap create_metrics() override {
    MetricMap metrics = LanguageModelTask::create_metrics();
    metrics.emplace("num_microbatches", counted_by_sample(std::make_shared<SumMetric>()));
    metrics.emplace("steps", std::make_shared<ComposeMetric>(MetricMap{{"last", std::make_shared<LastMetric>()}}));
    return metrics;
  }
  void update_metrics(const LanguageModelState& state, const MetricMap& metrics) override {
    LanguageModelTask::update_metrics(state, metrics);
    metric_at<SumMetric>(metrics, "num_microbatches").update(state.num_predicted > 0);  // without padding microbatches
    metric_at<LastMetric>(metrics, "steps/last").update(at::full({}, step, state.num_predicted.options()));
  }
  nlohmann::json state() const override { return num_losses; }
  void load_state(const std::vector<nlohmann::json>& of_ranks) override {
    for (const nlohmann::json& each : of_ranks) num_resumed += each.get<std::int64_t>();
  }
  const PipelineJob& job;
  std::int64_t num_losses = 0;
  std::int64_t num_resumed = 0;  // total of all ranks of the job that saved
  std::int64_t step = 0;
};

// Returns a copy of the full tensor.
inline at::Tensor whole_of(const DTensor& tensor) {
  return tensor.mesh.axes().empty() ? tensor.local.clone() : full_tensor(tensor).clone();
}

struct Provider : ModelProvider<LanguageModelTypes>, DataProvider<TokenBatch> {
  explicit Provider(const PipelineJob& pipeline_job) : job(pipeline_job) {}

  ModelStage<LanguageModelTypes> initialize_model_stage(const DistContext&, const PipelineStageInfo& stage) override {
    const DecoderStageOptions options{.stage = stage, .checkpointing = job.checkpoints};
    if (job.has_experts) {
      backbone = make_module<Qwen3MoEModel>(small_parameters<Qwen3MoEParameters>(sizes_of(job)), options);
    } else {
      backbone = make_module<Qwen3DenseModel>(small_parameters<Qwen3DenseParameters>(sizes_of(job)), options);
    }
    model = make_decoder_for_causal_lm(backbone);
    model->to(job.dtype);
    if (model->head && job.vocabulary != nullptr) model->head->set_vocabulary_context(job.vocabulary);
    for (const auto& [name, parameter] : model->named_parameters()) {
      const bool is_early =
          name.starts_with("model.embed") || name.starts_with("model.layers.0.") || name.starts_with("model.layers.1.");
      if (job.freezes_first && is_early) parameter->set_requires_grad(false);
    }
    if (job.on_stage) job.on_stage(stage, *model);
    return as_model_stage<LanguageModelTypes>(model);
  }
  std::optional<PeftConfig> adapters() const override { return job.adapters; }
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    parallelize_decoder(context, *backbone, {model->head.shared()}, job.fsdp, {}, job.context_parallel);
  }
  std::unique_ptr<PackStream<TokenBatch>> build_pack_stream(const DistContext& context,
                                                            std::optional<std::int64_t>) override {
    if (job.data) return packs_of(*job.data, context, job);
    return as_pack_stream<TokenBatch>(Stream{.rank = context.data_parallel_rank(),
                                             .num_ranks = context.data_parallel_size(),
                                             .rows = job.rows,
                                             .microbatches = job.microbatches});
  }

  StateMapper map_source_checkpoint(const HuggingFaceDirectory& source, const Module& module) override {
    if (!job.is_huggingface) return AnyModelProvider::map_source_checkpoint(source, module);
    const auto parameters = small_parameters<Qwen3DenseParameters>(sizes_of(job));
    return qwen3_dense_from_huggingface(parameters, CausalLMHeadConfig{}, source.names());
  }

  ModelExport prepare_export(const Module& module) override {
    if (job.is_huggingface) {
      const auto parameters = small_parameters<Qwen3DenseParameters>(sizes_of(job));
      return {.mapper = qwen3_dense_to_huggingface(parameters, CausalLMHeadConfig{})};
    }
    if (job.exported.empty()) return AnyModelProvider::prepare_export(module);
    return {.mapper = mapper::identities(job.exported)};
  }

  // When the job is ready, `note` gets all tensors of the stages as full tensors.
  void register_events(const DistContext&, EventBus& events) override {
    if (job.on_updated) {
      events.subscribe(kTrainOptimizerStepPost, [this](const auto&) { job.on_updated(); });
    }
    events.subscribe(kTrainModelStagesReady, [this](const ModelStagesReady& ready) {
      for (Module& stage : ready.modules) stages.push_back(&stage);
    });
    events.subscribe(kTrainOptimizerReady, [this](const OptimizerReady& ready) {
      for (const Module* stage : stages) {
        for (const auto& [name, tensor] : state_of(*stage)) note("model." + name, whole_of(tensor));
      }
      for (const auto& [name, tensor] : ready.optimizer.state_dict()) {
        note("optimizer." + name, whole_of(tensor));
      }
    });
  }

  const PipelineJob& job;
  std::vector<Module*> stages;
  std::function<void(const std::string& name, const at::Tensor& whole)> note;
  ModulePtr<PreNormDecoder> backbone;
  ModulePtr<DecoderForCausalLM> model;
};

struct Trained {
  std::vector<nlohmann::json> logged = {};            // of each step
  std::map<std::string, at::Tensor> parameters = {};  // of all stages
  std::map<std::string, at::Tensor> at_start = {};    // of model and optimiser, after a checkpoint was loaded
  std::int64_t num_losses = 0;                        // of all tasks, without those before a resume
  std::int64_t num_resumed = 0;                       // of each task
  std::string log = {};                               // of all ranks
  std::vector<std::int64_t> written = {};             // token ids after the prompt
  std::int64_t num_gathers = 0;                       // of sharded units, on all ranks
  std::int64_t num_reductions = 0;                    // likewise
  GraphCounts graph_counts = {};                      // of a rank
  std::int64_t peak_bytes = 0;                        // the most at once on a rank, on CPUs, until it is trained
};

inline std::filesystem::path folder() {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  return std::filesystem::path(::testing::TempDir()) / cat("d9d_", test->test_suite_name(), "_", test->name());
}

inline TrainerConfig config_of(const PipelineJob& job) {
  TrainerConfig config;
  config.run.name = "pipeline";
  config.schedule.total_steps = job.num_steps;
  config.pipelining.schedule = job.schedule;
  // By default, threads with sockets would exchange messages in memory.
  if (job.backend == RankBackend::kGloo) config.pipelining.messages = ExchangeMethod::kCommunicator;
  config.logging.tracker = JsonlTrackerConfig{.path = folder() / "metrics.jsonl"};
  config.logging.period_steps = {EverySteps{job.log_period}};
  if (job.logs_layer_norms) config.logging.norms_by_layer = {EverySteps{1}};
  config.model_stage_factory = job.model;
  if (job.base_seed) config.determinism.base_seed = *job.base_seed;
  config.gc.period_steps = {StepActionMode::kDisable};
  config.checkpointing.period_steps = {StepActionMode::kDisable};
  if (!job.save_dir.empty()) {
    config.checkpointing = {.save_dir = folder() / job.save_dir, .period_steps = {EverySteps{job.save_period}}};
  }
  if (!job.evaluated.empty() || job.evaluated_data) {
    config.evaluation["validation"] = {.period_steps = {EverySteps{1}}, .at_start = true};
  }
  config.ema = job.ema;
  config.gradient_manager.grad_dtype = job.gradient_dtype;
  config.gradient_clipping.max_norm = 0.5;
  if (job.has_graphs) config.cuda_graph.emplace();
  config.memory_budget = job.memory_budget;
  if (job.step_timeout) config.timeout.step_timeout = *job.step_timeout;
  return config;
}

inline std::vector<std::int64_t> written_by(const DistContext& context, const TrainerBase& trainer,
                                            const PipelineJob& job) {
  const auto decoder =
      staged_decoder(context, trainer.placement(), trainer.stages(), {.method = config_of(job).pipelining.messages});
  return generate(*decoder, job.prompt,
                  {.num_tokens = 6,
                   .temperature = 1.0,
                   .max_sequence = 8,
                   .sequence_ranks = context.mesh(MeshDomain::kBatch).slice({"cp", "tp"}),
                   .ranks = context.mesh(MeshDomain::kFlat)});
}

inline Trained train(const PipelineJob& job) {
  std::filesystem::create_directories(folder());
  std::filesystem::remove(folder() / "metrics.jsonl");
  Trained trained;
  std::mutex mutex;
  const auto run = [&](World& world) {
    const MemoryPeak memory;
    const DistContext context({.mesh = job.mesh,
                               .world = borrowed(world),
                               .local_rank = world.rank(),
                               .log_sink = [&](std::string_view line) {
                                 const std::lock_guard lock(mutex);
                                 trained.log += line;
                               }});
    Task task(context, job);
    Provider provider(job);
    const auto saved = job.begins_as.empty() ? std::nullopt : checkpoint_at(folder() / job.begins_as);
    provider.note = [&](const std::string& name, const at::Tensor& whole) {
      if (!job.keeps_start) return;
      const std::lock_guard lock(mutex);
      const auto [found, is_first] = trained.at_start.try_emplace(name, whole);
      EXPECT_TRUE(is_first || at::equal(found->second, whole)) << name << " begins as another on another rank";
      if (!saved) return;
      const auto tensor = saved->tensors("").find(name);
      EXPECT_TRUE(tensor.has_value() && at::equal(whole.cpu(), tensor->read())) << name << " is not what was saved";
    };
    EvaluatedData evaluated(job);
    EvaluationData<LanguageModelTypes> evaluation_sets;
    if (!job.evaluated.empty() || job.evaluated_data) evaluation_sets["validation"] = &evaluated;
    AutoOptimizerProvider optimizer(job.optimizer);
    AutoLRSchedulerProvider lr_scheduler(
        PiecewiseConfig{.initial_multiplier = 1.0,
                        .phases = {RestPhaseConfig{.target_multiplier = 0.5, .curve = LinearCurveConfig{}}}});
    const auto custom_schedule =
        job.custom_schedule ? std::optional(job.custom_schedule(world.rank())) : std::optional<PipelineSchedule>();
    Trainer<LanguageModelTypes> trainer(context, config_of(job),
                                        {.task = task,
                                         .model = provider,
                                         .data = provider,
                                         .optimizer = job.own_optimizer != nullptr ? *job.own_optimizer : optimizer,
                                         .lr_scheduler = lr_scheduler,
                                         .evaluation = evaluation_sets,
                                         .tracker = nullptr,
                                         .pipeline_schedule = custom_schedule});
    const auto sleep_and_wake = [&] {
      trainer.sleep(job.sleeps);
      trainer.wake();
    };
    if (!job.sleeps.empty()) {
      sleep_and_wake();
      trainer.events().subscribe(kTrainStepPost, [&](const auto&) { sleep_and_wake(); });
    }
    ASSERT_EQ(trainer.train(), TrainingOutcome::kFinished);
    const std::int64_t peak_bytes = memory.peak_bytes();
    if (!job.sleeps.empty()) sleep_and_wake();
    if (!job.export_to.empty()) trainer.export_to(folder() / job.export_to);
    std::vector<std::map<std::string, at::Tensor>> whole;  // of each stage
    for (const auto& stage : trainer.stages()) whole.push_back(stage->full_state_dict());
    if (job.on_trained) job.on_trained(trainer.module());
    const std::vector<std::int64_t> written = job.prompt.empty() ? job.prompt : written_by(context, trainer, job);
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(trained.written.empty() || trained.written == written) << "ranks write different texts";
    trained.written = written;
    trained.peak_bytes = std::max(trained.peak_bytes, peak_bytes);
    trained.num_losses += task.num_losses;
    trained.num_resumed = task.num_resumed;
    trained.graph_counts = trainer.graph_counts();
    for (const auto& reduction : gradient_reductions(trainer.module())) {
      const auto* const shards = dynamic_cast<const FsdpRuntime*>(reduction.get());
      if (shards == nullptr) continue;
      trained.num_gathers += shards->num_gathers();
      trained.num_reductions += shards->num_reductions();
    }
    for (const auto& of_stage : whole) {
      for (const auto& [name, tensor] : of_stage) {
        const auto [found, is_first] = trained.parameters.try_emplace(name, tensor.detach().clone());
        EXPECT_TRUE(is_first || at::equal(found->second, tensor)) << name << " is another of another stage or rank";
      }
    }
  };
  if (job.is_on_gpu) {
    run(*one_rank_world(at::Device(at::kCUDA, 0)));
  } else {
    run_ranks(job.backend, job.mesh.world_size(), run);
  }
  std::ifstream file(folder() / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) trained.logged.push_back(nlohmann::json::parse(line));
  return trained;
}

// Checks that each key of a line is logged once.
inline std::map<std::string, std::vector<double>> series_of(const Trained& trained) {
  std::map<std::string, std::vector<double>> series;
  for (const nlohmann::json& line : trained.logged) {
    for (const auto& [key, value] : line.items()) {
      if (value.is_number() && !is_measured(key)) series[key].push_back(value.get<double>());
    }
  }
  return series;
}

// Compares bit for bit.
inline void expect_equal(const Trained& actual, const Trained& expected) {
  EXPECT_EQ(series_of(actual), series_of(expected));
  EXPECT_EQ(actual.parameters.size(), expected.parameters.size());
  for (const auto& [name, tensor] : expected.parameters) {
    EXPECT_TRUE(at::equal(actual.parameters.at(name), tensor)) << name;
  }
}

inline void expect_same_series(const Trained& actual, const Trained& expected) {
  const auto own = series_of(actual), others = series_of(expected);
  for (const char* const name : {"loss", "grad_norm", "num_tokens", "num_predicted", "num_microbatches", "steps/last"})
    EXPECT_TRUE(others.contains(name));
  for (const auto& [name, values] : others) {
    ASSERT_TRUE(own.contains(name)) << name;
    ASSERT_EQ(own.at(name).size(), values.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(own.at(name)[i], values[i], tolerance("fp64").value * std::abs(values[i]))
          << name << " of line " << i;
    }
  }
}

// Keeps what a job without PipelineJob::evaluated logs.
inline Trained without_evaluation(Trained trained) {
  std::erase_if(trained.logged, [](const nlohmann::json& line) { return line.value("step", 0) < 0; });
  for (nlohmann::json& line : trained.logged) {
    std::erase_if(line.get_ref<nlohmann::json::object_t&>(),
                  [](const auto& each) { return each.first.starts_with("validation/"); });
  }
  return trained;
}

inline void expect_same(const Trained& actual, const Trained& expected) {
  expect_same_series(actual, expected);
  for (const auto& [name, tensor] : expected.parameters) {
    ASSERT_TRUE(actual.parameters.contains(name)) << name;
    const double scale = std::max(1e-3, tensor.to(at::kDouble).abs().max().item<double>());
    const double error = (actual.parameters.at(name) - tensor).to(at::kDouble).abs().max().item<double>();
    EXPECT_LE(error, tolerance("fp64").value * scale) << name;
  }
  EXPECT_EQ(actual.parameters.size(), expected.parameters.size());
}

inline const Trained& in_one_piece() {
  static const Trained trained = train({});
  return trained;
}

inline std::vector<PipelineScheduleConfig> schedules() {
  return {GPipeScheduleConfig{},
          OneFOneBScheduleConfig{},
          OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true},
          LoopedBfsScheduleConfig{.num_stages_per_rank = 2},
          ZeroBubbleVScheduleConfig{},
          DualPipeVScheduleConfig{}};
}

inline std::string error_of(const PipelineJob& job) {
  try {
    (void)train(job);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace d9d::test::pipeline
