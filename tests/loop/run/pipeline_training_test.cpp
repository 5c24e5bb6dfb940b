// A model in pipeline stages trains as the model in one piece on one rank does: what is logged, and all parameters, in
// float64.
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/data/pack/as_pack_stream.h"
#include "d9d/loop/auto/auto_providers.h"
#include "d9d/loop/auto/language_model_task.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/qwen3_dense/model.h"
#include "d9d/models/qwen3_moe/model.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

#include "tests/support/decoder_families.h"
#include "tests/support/ranks.h"

namespace d9d::test::pipeline_training_test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kNumMicrobatches = 8;  // of a step, over all ranks
constexpr std::int64_t kNumSteps = 3;
constexpr double kRounding = 1e-9;  // of sums in another order, which AdamW divides by their size

struct PipelineJob {
  DeviceMeshParameters mesh = {};
  PipelineScheduleConfig schedule = {};
  FsdpConfig fsdp = {};
  bool checkpoints = false;
  bool has_experts = false;
  bool ties_embeddings = false;
  bool freezes_first = false;  // embedding and the first two layers
  std::int64_t num_steps = kNumSteps;
  std::string save_dir = {};  // saves after each step, and continues from there
  std::string export_to = {};
  std::set<std::string> exported = {};  // empty: what the provider does by itself
  RankBackend backend = RankBackend::kThreads;
};

// Of 4, 6 or 8 positions; a fifth of the labels do not count.
TokenBatch microbatch(std::int64_t step, std::int64_t number) {
  const std::int64_t length = 4 + 2 * ((step + number) % 3), seed = 1 + step * kNumMicrobatches + number;
  const at::Tensor position = at::arange(length);
  const at::Tensor labels = (position * position * 3 + 5 * seed).remainder(20).unsqueeze(0);
  return {.input_ids = (position * 7 * seed + position + seed).remainder(20).unsqueeze(0),
          .labels = labels.masked_fill(labels.remainder(5) == 0, kIgnoreIndex),
          .position_ids = position.unsqueeze(0)};
}

struct Stream {
  std::optional<std::vector<TokenBatch>> next() {
    std::vector<TokenBatch> pack;
    const std::int64_t share = kNumMicrobatches / num_ranks;
    for (std::int64_t i = rank * share; i < (rank + 1) * share; ++i) pack.push_back(microbatch(step, i));
    ++step;
    return pack;
  }
  std::optional<std::int64_t> total_steps() const { return std::nullopt; }
  nlohmann::json state() const { return step; }
  void load_state(const nlohmann::json& state) { step = state; }

  std::int64_t rank = 0, num_ranks = 1, step = 0;
};

struct Provider : ModelProvider<LanguageModelTypes>, DataProvider<TokenBatch> {
  explicit Provider(const PipelineJob& pipeline_job) : job(pipeline_job) {}

  ModelStage<LanguageModelTypes> initialize_model_stage(const DistContext&, const PipelineStageInfo& stage) override {
    const DecoderStageOptions options{.stage = stage, .enable_checkpointing = job.checkpoints};
    const SmallDecoder sizes{
        .num_layers = 8, .ties_embeddings = job.ties_embeddings, .auxiliary_loss_coefficient = 0.1};
    if (job.has_experts) {
      backbone = make_module<Qwen3MoEModel>(small_parameters<Qwen3MoEParameters>(sizes), options);
    } else {
      backbone = make_module<Qwen3DenseModel>(small_parameters<Qwen3DenseParameters>(sizes), options);
    }
    model = make_decoder_for_causal_lm(backbone);
    model->to(at::kDouble);
    for (const auto& [name, parameter] : model->named_parameters()) {
      const bool is_early =
          name.starts_with("model.embed") || name.starts_with("model.layers.0.") || name.starts_with("model.layers.1.");
      if (job.freezes_first && is_early) parameter->set_requires_grad(false);
    }
    return as_model_stage<LanguageModelTypes>(model);
  }
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    parallelize_decoder(context, *backbone, {model->head.shared()}, job.fsdp);
  }
  std::unique_ptr<PackStream<TokenBatch>> build_pack_stream(const DistContext& context,
                                                            std::optional<std::int64_t>) override {
    return as_pack_stream<TokenBatch>(
        Stream{.rank = context.data_parallel_rank(), .num_ranks = context.data_parallel_size()});
  }

  ModelExport prepare_export(const Module& module) override {
    if (job.exported.empty()) return AnyModelProvider::prepare_export(module);
    return {.mapper = mapper::identities(job.exported)};
  }

  const PipelineJob& job;
  ModulePtr<PreNormDecoder> backbone;
  ModulePtr<DecoderForCausalLM> model;
};

struct Trained {
  std::vector<nlohmann::json> logged = {};            // of each step
  std::map<std::string, at::Tensor> parameters = {};  // of all stages
};

std::filesystem::path folder() { return std::filesystem::path(::testing::TempDir()) / "d9d_pipeline_training"; }

TrainerConfig config_of(const PipelineJob& job) {
  TrainerConfig config;
  config.run.name = "pipeline";
  config.schedule.total_steps = job.num_steps;
  config.pipelining.schedule = job.schedule;
  config.logging.tracker = JsonlTrackerConfig{.path = folder() / "metrics.jsonl"};
  config.gc.period_steps = {StepActionMode::kDisable};
  config.checkpointing.period_steps = {StepActionMode::kDisable};
  if (!job.save_dir.empty()) {
    config.checkpointing = {.save_dir = folder() / job.save_dir, .period_steps = {EverySteps{1}}};
  }
  config.gradient_clipping.max_norm = 0.5;
  return config;
}

Trained train(const PipelineJob& job) {
  std::filesystem::create_directories(folder());
  std::filesystem::remove(folder() / "metrics.jsonl");
  Trained trained;
  std::mutex mutex;
  run_ranks(job.backend, job.mesh.world_size(), [&](World& world) {
    const DistContext context(
        {.mesh = job.mesh, .world = borrowed(world), .local_rank = world.rank(), .log_sink = [](std::string_view) {}});
    LanguageModelTask task(context);
    Provider provider(job);
    AutoOptimizerProvider optimizer(AdamWConfig{.lr = 1e-2});
    AutoLRSchedulerProvider lr_scheduler(
        PiecewiseConfig{.initial_multiplier = 1.0,
                        .phases = {RestPhaseConfig{.target_multiplier = 1.0, .curve = LinearCurveConfig{}}}});
    Trainer<LanguageModelTypes> trainer(context, config_of(job),
                                        {.task = task,
                                         .model = provider,
                                         .data = provider,
                                         .optimizer = optimizer,
                                         .lr_scheduler = lr_scheduler,
                                         .tracker = nullptr});
    ASSERT_EQ(trainer.train(), TrainingOutcome::kFinished);
    if (!job.export_to.empty()) trainer.export_to(folder() / job.export_to);
    const auto whole = trainer.module().full_state_dict();
    const std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : whole) trained.parameters.insert_or_assign(name, tensor.detach().clone());
  });
  std::ifstream file(folder() / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) trained.logged.push_back(nlohmann::json::parse(line));
  return trained;
}

// Each key of a line is logged once.
std::map<std::string, std::vector<double>> series_of(const Trained& trained) {
  std::map<std::string, std::vector<double>> series;
  for (const nlohmann::json& line : trained.logged) {
    for (const auto& [key, value] : line.items()) {
      if (value.is_number() && key != "step_seconds" && key != "time") series[key].push_back(value.get<double>());
    }
  }
  return series;
}

void expect_same(const Trained& actual, const Trained& expected) {
  const auto own = series_of(actual), others = series_of(expected);
  for (const char* const name : {"loss", "grad_norm", "num_tokens", "num_predicted"})
    EXPECT_TRUE(others.contains(name));
  for (const auto& [name, values] : others) {
    ASSERT_TRUE(own.contains(name)) << name;
    ASSERT_EQ(own.at(name).size(), values.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(own.at(name)[i], values[i], kRounding * std::abs(values[i])) << name << " of line " << i;
    }
  }
  for (const auto& [name, tensor] : expected.parameters) {
    ASSERT_TRUE(actual.parameters.contains(name)) << name;
    const double scale = std::max(1e-3, tensor.to(at::kDouble).abs().max().item<double>());
    const double error = (actual.parameters.at(name) - tensor).to(at::kDouble).abs().max().item<double>();
    EXPECT_LE(error, kRounding * scale) << name;
  }
  EXPECT_EQ(actual.parameters.size(), expected.parameters.size());
}

const Trained& in_one_piece() {
  static const Trained trained = train({});
  return trained;
}

std::vector<PipelineScheduleConfig> schedules() {
  return {GPipeScheduleConfig{},
          OneFOneBScheduleConfig{},
          OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true},
          LoopedBfsScheduleConfig{.num_stages_per_rank = 2},
          ZeroBubbleVScheduleConfig{},
          DualPipeVScheduleConfig{}};
}

std::string error_of(const PipelineJob& job) {
  try {
    (void)train(job);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(PipelineTraining, Each_schedule_on_one_two_and_four_ranks_trains_as_one_piece_does) {
  for (const PipelineScheduleConfig& schedule : schedules()) {
    for (const std::int64_t num_ranks : {1, 2, 4}) {
      SCOPED_TRACE(cat(schedule_of(schedule).name, " on ", num_ranks));
      expect_same(train({.mesh = {.pipeline_parallel = num_ranks}, .schedule = schedule}), in_one_piece());
    }
  }
}

TEST(PipelineTraining, Sharded_and_replicated_stages_train_as_one_piece_does) {
  const FsdpConfig once{.reshard_after_forward = ReshardAfterForward::kNever, .reduce_on_last_microbatch = true};
  const FsdpConfig always{.reshard_after_forward = ReshardAfterForward::kAlways};
  for (const PipelineScheduleConfig& schedule :
       {PipelineScheduleConfig(OneFOneBScheduleConfig{}), PipelineScheduleConfig(ZeroBubbleVScheduleConfig{}),
        PipelineScheduleConfig(DualPipeVScheduleConfig{})}) {
    SCOPED_TRACE(schedule_of(schedule).name);
    const auto expect_with = [&](const DeviceMeshParameters& mesh, const FsdpConfig& fsdp) {
      expect_same(train({.mesh = mesh, .schedule = schedule, .fsdp = fsdp}), in_one_piece());
    };
    expect_with({.pipeline_parallel = 2, .data_parallel_replicate = 2}, {});
    expect_with({.pipeline_parallel = 2, .data_parallel_shard = 2}, {});
    expect_with({.pipeline_parallel = 2, .data_parallel_shard = 2}, once);
    expect_with({.pipeline_parallel = 2, .data_parallel_shard = 2}, always);
  }
  expect_same(train({.mesh = {.pipeline_parallel = 2, .data_parallel_replicate = 2, .data_parallel_shard = 2},
                     .schedule = OneFOneBScheduleConfig{.num_stages_per_rank = 2},
                     .fsdp = once}),
              in_one_piece());
}

TEST(PipelineTraining, Stages_with_shared_sequences_train_as_one_piece_does) {
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.pipeline_parallel = 2, .context_parallel_shard = 2},
        DeviceMeshParameters{.pipeline_parallel = 2, .context_parallel_replicate = 2}}) {
    expect_same(train({.mesh = mesh, .schedule = OneFOneBScheduleConfig{.num_stages_per_rank = 2}}), in_one_piece());
  }
}

TEST(PipelineTraining, Stages_with_experts_and_an_auxiliary_loss_train_as_one_piece_does) {
  const Trained expected = train({.has_experts = true});
  for (const DeviceMeshParameters& mesh :
       {DeviceMeshParameters{.pipeline_parallel = 2},
        DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 2, .expert_parallel = 2}}) {
    expect_same(train({.mesh = mesh, .schedule = ZeroBubbleVScheduleConfig{}, .has_experts = true}), expected);
  }
}

TEST(PipelineTraining, Checkpointed_layers_and_a_frozen_stage_train_as_one_piece_does) {
  const Trained expected = train({.freezes_first = true});
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{.pipeline_parallel = 4},
                                           DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 2}}) {
    expect_same(train({.mesh = mesh, .schedule = OneFOneBScheduleConfig{}, .checkpoints = true, .freezes_first = true}),
                expected);
  }
}

// Schedules whose weights' gradients wait, with layers that are recomputed, shards, and experts.
TEST(PipelineTraining, Split_backwards_train_as_one_piece_does) {
  const Trained dense = in_one_piece(), with_experts = train({.has_experts = true});
  const FsdpConfig once{.reshard_after_forward = ReshardAfterForward::kNever, .reduce_on_last_microbatch = true};
  for (const PipelineScheduleConfig& schedule :
       {PipelineScheduleConfig(OneFOneBScheduleConfig{.zero_bubble = true}),
        PipelineScheduleConfig(OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true}),
        PipelineScheduleConfig(ZeroBubbleVScheduleConfig{}), PipelineScheduleConfig(DualPipeVScheduleConfig{})}) {
    for (const bool has_experts : {false, true}) {
      SCOPED_TRACE(cat(schedule_of(schedule).name, has_experts ? " with experts" : ""));
      const auto expect = [&](const DeviceMeshParameters& mesh, const FsdpConfig& fsdp) {
        expect_same(
            train({.mesh = mesh, .schedule = schedule, .fsdp = fsdp, .checkpoints = true, .has_experts = has_experts}),
            has_experts ? with_experts : dense);
      };
      const std::int64_t expert_parallel = has_experts ? 2 : 1;
      expect({.pipeline_parallel = 4}, {});
      expect({.pipeline_parallel = 2, .data_parallel_shard = 2, .expert_parallel = expert_parallel}, {});
      expect({.pipeline_parallel = 2, .data_parallel_shard = 2, .expert_parallel = expert_parallel}, once);
      expect({.pipeline_parallel = 2, .data_parallel_replicate = 2}, {});
    }
  }
}

TEST(PipelineTraining, Split_backwards_past_frozen_layers_train_as_one_piece_does) {
  const Trained expected = train({.freezes_first = true});
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{.pipeline_parallel = 4},
                                           DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 2}}) {
    expect_same(
        train({.mesh = mesh, .schedule = ZeroBubbleVScheduleConfig{}, .checkpoints = true, .freezes_first = true}),
        expected);
  }
}

TEST(PipelineTraining, Stages_over_sockets_train_as_one_piece_does) {
  expect_same(train({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2},
                     .schedule = DualPipeVScheduleConfig{},
                     .backend = RankBackend::kGloo}),
              in_one_piece());
}

// Of several stages on one rank.
TEST(PipelineTraining, A_job_continues_with_other_stages) {
  std::filesystem::remove_all(folder() / "checkpoints");
  (void)train({.schedule = ZeroBubbleVScheduleConfig{}, .num_steps = 1, .save_dir = "checkpoints"});
  Trained last = train({.save_dir = "checkpoints"});
  last.logged = in_one_piece().logged;
  expect_same(last, in_one_piece());
}

TEST(PipelineTraining, Stages_are_exported_as_the_model_in_one_piece_is) {
  std::filesystem::remove_all(folder() / "export");
  PipelineJob job{.mesh = {.pipeline_parallel = 2},
                  .schedule = OneFOneBScheduleConfig{.num_stages_per_rank = 2},
                  .export_to = "export"};
  EXPECT_THAT(error_of(job), HasSubstr("the mapper of the whole model in ModelProvider::prepare_export"));
  for (const auto& [name, tensor] : in_one_piece().parameters) job.exported.insert(name);
  (void)train(job);
  const std::vector<std::string> names = HuggingFaceDirectory(folder() / "export").names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), job.exported);
}

TEST(PipelineTraining, Says_what_is_not_built) {
  EXPECT_THAT(error_of({.mesh = {.pipeline_parallel = 2}, .ties_embeddings = true}), HasSubstr("tied embeddings"));
  EXPECT_THAT(error_of({.mesh = {.pipeline_parallel = 2}, .save_dir = "checkpoints"}),
              HasSubstr("trainer.checkpointing with mesh.pipeline_parallel = 2 is not built"));
  EXPECT_THAT(error_of({.mesh = {.pipeline_parallel = 2, .tensor_parallel = 2}}),
              HasSubstr("tensor parallelism of pipeline stages is not built"));
  EXPECT_THAT(error_of({.schedule = InferenceScheduleConfig{}}), HasSubstr("training without a backward pass"));
  EXPECT_THAT(
      error_of({.mesh = {.pipeline_parallel = 4, .data_parallel_replicate = 2}, .schedule = DualPipeVScheduleConfig{}}),
      HasSubstr("dual_pipe_v"));
}

}  // namespace
}  // namespace d9d::test::pipeline_training_test
