// A language model and a classifier with one backbone in a job with pipeline stages: the prefix of each head selects
// its published weights, both train as on one rank, and each head is exported under its prefix.
#include <fstream>
#include <mutex>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/data/pack/as_pack_stream.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/models/decoder/decoder_with_heads.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/qwen3_dense/huggingface.h"
#include "d9d/models/qwen3_dense/model.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

#include "tests/loop/run/pipeline_job.h"
#include "tests/support/compare.h"
#include "tests/support/decoder_families.h"
#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"

namespace d9d::test::pipeline_heads_test {
namespace {

namespace fs = std::filesystem;
using pipeline::kNumMicrobatches;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kNumLabels = 3;

const Qwen3DenseParameters& parameters() {
  static const auto all = small_parameters<Qwen3DenseParameters>({.num_layers = 8});
  return all;
}
const HeadConfig kLanguage = CausalLMHeadConfig{};
const HeadConfig kIntent = ClassificationHeadConfig{.num_labels = kNumLabels};

StateMapper from_published(const std::vector<std::string>& names) {
  return add_head_from_huggingface(
      qwen3_dense_from_huggingface(parameters(), kIntent, names, {.head = "heads.intent."}), kLanguage,
      decoder_sizes(parameters()), "model.", {.head = "heads.lm."});
}
StateMapper to_published() {
  return mapper::parallel({qwen3_dense_to_huggingface(parameters(), kIntent, {.head = "heads.intent."}),
                           head_to_huggingface(kLanguage, decoder_sizes(parameters()), {.head = "heads.lm."})});
}

struct Batch {
  at::Tensor ids;     // [1, S]
  at::Tensor labels;  // [1, S]
  at::Tensor intent;  // [1]
  static constexpr auto fields() {
    return record<Batch>(field("ids", &Batch::ids), field("labels", &Batch::labels), field("intent", &Batch::intent));
  }
};

struct Types {
  using Batch = pipeline_heads_test::Batch;
  using Input = SequenceInput;
  using Transfer = SequenceTransfer;
  using Shared = SequenceHeadsShared;
  using Output = DecoderHeadsOutput;
  using State = Batch;
};

// One loss is a mean over labels, the other a mean over sequences.
struct Task : TrainTask<Types> {
  ForwardInputs<Types> build_forward_inputs(const Batch& batch) override {
    const at::Tensor positions = at::arange(batch.ids.size(1)).unsqueeze(0);
    const at::Tensor is_last = positions.eq(batch.ids.size(1) - 1).to(at::kLong);
    return {.input = {batch.ids},
            .shared = {.sequence = {.position_ids = positions, .hidden_states_agg_mask = {}},
                       .heads = {{"lm", LanguageModellingShared{batch.labels}}, {"intent", PoolingShared{is_last}}}},
            .state = batch,
            .num_tokens = batch.ids.numel(),
            .loss_weights = {{"lm", batch.labels.ne(kIgnoreIndex).sum()}, {"intent", at::ones({})}}};
  }
  LossResult compute_loss(const Output& output, State& state, const JobSchedule&) override {
    const auto& lm = std::get<LanguageModellingOutput>(output.heads.at("lm"));
    const auto& intent = std::get<ClassificationOutput>(output.heads.at("intent"));
    const at::Tensor count = state.labels.ne(kIgnoreIndex).sum().clamp_min(1);
    return {.losses = {{"lm", lm.cross_entropy.sum() / count},
                       {"intent", at::cross_entropy_loss(intent.scores, state.intent)}}};
  }
};

struct Stream {
  std::optional<std::vector<Batch>> next() {
    std::vector<Batch> pack;
    const std::int64_t share = kNumMicrobatches / num_ranks;
    for (std::int64_t i = rank * share; i < (rank + 1) * share; ++i) {
      const TokenBatch tokens = pipeline::microbatch(step, i);
      pack.push_back({.ids = tokens.input_ids,
                      .labels = tokens.labels,
                      .intent = at::full({1}, (1 + step * kNumMicrobatches + i) % kNumLabels)});
    }
    ++step;
    return pack;
  }
  std::optional<std::int64_t> total_steps() const { return std::nullopt; }
  nlohmann::json state() const { return step; }
  void load_state(const nlohmann::json& state) { step = state; }

  std::int64_t rank = 0, num_ranks = 1, step = 0;
};

ModulePtr<DecoderWithHeads> make_model(const PipelineStageInfo& stage, ModulePtr<PreNormDecoder>& backbone) {
  backbone = make_module<Qwen3DenseModel>(parameters(), DecoderStageOptions{.stage = stage});
  auto model = make_module<DecoderWithHeads>(backbone,
                                             std::map<std::string, HeadConfig>{{"lm", kLanguage}, {"intent", kIntent}});
  model->to(at::kDouble);
  return model;
}

struct Provider : ModelProvider<Types>, DataProvider<Batch> {
  ModelStage<Types> initialize_model_stage(const DistContext&, const PipelineStageInfo& stage) override {
    model = make_model(stage, backbone);
    return as_model_stage<Types>(model);
  }
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    std::vector<std::shared_ptr<Module>> heads;
    for (const auto& [name, any_head] : model->heads) {
      std::visit([&](const auto& head) { heads.push_back(head.shared()); }, any_head);
    }
    parallelize_decoder(context, *backbone, heads);
  }
  StateMapper map_source_checkpoint(const HuggingFaceDirectory& source, const Module&) override {
    return from_published(source.names());
  }
  ModelExport prepare_export(const Module&) override { return {.mapper = to_published()}; }
  std::unique_ptr<PackStream<Batch>> build_pack_stream(const DistContext& context,
                                                       std::optional<std::int64_t>) override {
    return as_pack_stream<Batch>(
        Stream{.rank = context.data_parallel_rank(), .num_ranks = context.data_parallel_size()});
  }

  ModulePtr<PreNormDecoder> backbone;
  ModulePtr<DecoderWithHeads> model;
};

struct Job {
  DeviceMeshParameters mesh = {};
  PipelineScheduleConfig schedule = {};
  fs::path source = {};
  fs::path export_to = {};  // empty: no export
};

struct Trained {
  std::vector<std::map<std::string, double>> losses;
  std::map<std::string, at::Tensor> parameters;
  std::string log;
};

Trained train(const Job& job) {
  Trained trained;
  std::mutex mutex;
  const fs::path metrics = fresh_directory("metrics") / "metrics.jsonl";
  run_ranks(RankBackend::kThreads, job.mesh.world_size(), [&](World& world) {
    const DistContext context({.mesh = job.mesh,
                               .world = borrowed(world),
                               .local_rank = world.rank(),
                               .log_sink = [&](std::string_view line) {
                                 const std::lock_guard lock(mutex);
                                 trained.log += line;
                               }});
    Task task;
    Provider provider;
    AutoOptimizerProvider optimizer(AdamWConfig{.lr = 1e-2});
    AutoLRSchedulerProvider lr_scheduler(
        PiecewiseConfig{.initial_multiplier = 1.0,
                        .phases = {RestPhaseConfig{.target_multiplier = 1.0, .curve = LinearCurveConfig{}}}});
    TrainerConfig config;
    config.run.name = "heads";
    config.schedule.total_steps = 3;
    config.pipelining.schedule = job.schedule;
    config.logging.tracker = JsonlTrackerConfig{.path = metrics};
    config.logging.period_steps = {EverySteps{1}};
    config.checkpointing.period_steps = {StepActionMode::kDisable};
    config.model_stage_factory.source_checkpoint = job.source;
    Trainer<Types> trainer(context, config,
                           {.task = task,
                            .model = provider,
                            .data = provider,
                            .optimizer = optimizer,
                            .lr_scheduler = lr_scheduler,
                            .tracker = nullptr});
    EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
    if (!job.export_to.empty()) trainer.export_to(job.export_to);
    const auto whole = trainer.module().full_state_dict();
    const std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : whole) trained.parameters.insert_or_assign(name, tensor.detach().clone());
  });
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    for (const char* const name : {"loss", "loss/lm", "loss/intent"}) {
      if (json.contains(name)) trained.losses.push_back({{name, json.at(name).get<double>()}});
    }
  }
  return trained;
}

std::map<std::string, at::Tensor> tensors_in(const fs::path& folder) {
  const HuggingFaceDirectory directory(folder);
  std::map<std::string, at::Tensor> tensors;
  for (const std::string& name : directory.names()) tensors.emplace(name, directory.find(name)->read().clone());
  return tensors;
}

// Writes weights of both heads under the names that transformers gives them.
fs::path published() {
  ModulePtr<PreNormDecoder> backbone;
  const auto model = make_model({}, backbone);
  model->materialize(at::kCPU);
  model->reset_parameters(77);
  const fs::path folder = fresh_directory("d") / "published";
  write_huggingface_directory(folder, nlohmann::json::object(),
                              mapped_sources(to_published(), tensors_of(model->state_dict())));
  return folder;
}

TEST(PipelineHeads, Train_as_on_one_rank_and_each_goes_in_and_out_by_its_prefix) {
  const fs::path source = published(), of_one = fresh_directory("one") / "export";
  const Trained one = train({.source = source, .export_to = of_one});
  EXPECT_EQ(one.losses.size(), 9U);
  const auto expected = tensors_in(of_one);
  for (const char* const name : {"lm_head.weight", "score.weight", "model.embed_tokens.weight"}) {
    EXPECT_TRUE(expected.contains(name)) << name;
    EXPECT_FALSE(at::equal(expected.at(name), tensors_in(source).at(name))) << name;
  }
  for (const Job& job :
       {Job{.mesh = {.pipeline_parallel = 2}, .schedule = OneFOneBScheduleConfig{}},
        Job{.mesh = {.pipeline_parallel = 2}, .schedule = ZeroBubbleVScheduleConfig{}},
        Job{.mesh = {.pipeline_parallel = 4}, .schedule = GPipeScheduleConfig{}},
        Job{.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2}, .schedule = DualPipeVScheduleConfig{}}}) {
    SCOPED_TRACE(cat(schedule_of(job.schedule).name, " on ", job.mesh.world_size()));
    const fs::path folder = fresh_directory("cut") / "export";
    const Trained cut = train({.mesh = job.mesh, .schedule = job.schedule, .source = source, .export_to = folder});
    ASSERT_EQ(cut.losses.size(), one.losses.size());
    for (std::size_t i = 0; i < one.losses.size(); ++i) {
      for (const auto& [name, loss] : one.losses[i]) {
        EXPECT_NEAR(cut.losses[i].at(name), loss, tolerance("fp64").value * loss) << name;
      }
    }
    EXPECT_EQ(difference(cut.parameters, one.parameters, tolerance("fp64")), "");
    EXPECT_EQ(difference(tensors_in(folder), expected, tolerance("fp64")), "");
    EXPECT_THAT(cut.log, Not(HasSubstr("ignored")));
    EXPECT_THAT(cut.log, Not(HasSubstr("did not export")));
  }
}

TEST(PipelineHeads, Train_bit_for_bit_as_named_where_auto_measures_a_task_of_several_losses) {
  const fs::path source = published();
  const DeviceMeshParameters mesh{.pipeline_parallel = 2, .data_parallel_shard = 2};
  const AutoScheduleConfig only{.max_stages_per_rank = 2, .schedules = {ScheduleKind::kZeroBubbleV}};
  const Trained chosen = train({.mesh = mesh, .schedule = only, .source = source});
  const Trained named = train({.mesh = mesh, .schedule = ZeroBubbleVScheduleConfig{}, .source = source});
  EXPECT_EQ(chosen.losses, named.losses);
  ASSERT_EQ(chosen.parameters.size(), named.parameters.size());
  for (const auto& [name, tensor] : named.parameters)
    EXPECT_TRUE(at::equal(chosen.parameters.at(name), tensor)) << name;
  EXPECT_THAT(chosen.log, HasSubstr("= auto: measured the model"));
}

// A model with one head loads its part of the export with both heads.
template <class Model>
void expect_loads(const ModulePtr<Model>& model, const HeadConfig& head, const fs::path& folder,
                  const std::string& prefix, const Trained& trained) {
  model->to(at::kDouble);
  model->materialize(at::kCPU);
  model->reset_parameters(5);
  const HuggingFaceDirectory directory(folder);
  (void)load_model_state(*model, qwen3_dense_from_huggingface(parameters(), head, directory.names()),
                         tensors_of(directory));
  for (const auto& [name, tensor] : model->state_dict()) {
    const std::string there = name.starts_with("head.") ? prefix + name.substr(5) : name;
    EXPECT_TRUE(at::equal(tensor, trained.parameters.at(there))) << name;
  }
}

TEST(PipelineHeads, Exported_by_stages_load_into_other_stages_and_alone) {
  const fs::path source = published(), folder = fresh_directory("cut") / "export";
  const Trained cut = train({.mesh = {.pipeline_parallel = 2},
                             .schedule = OneFOneBScheduleConfig{.num_stages_per_rank = 2},
                             .source = source,
                             .export_to = folder});
  const Trained one = train({.source = folder});
  const Trained again =
      train({.mesh = {.pipeline_parallel = 4}, .schedule = OneFOneBScheduleConfig{}, .source = folder});
  EXPECT_EQ(difference(again.parameters, one.parameters, tolerance("fp64")), "");
  const auto backbone = [] { return make_module<Qwen3DenseModel>(parameters(), DecoderStageOptions{}); };
  expect_loads(make_decoder_for_causal_lm(backbone()), kLanguage, folder, "heads.lm.", cut);
  expect_loads(make_decoder_for_classification(backbone(), std::get<ClassificationHeadConfig>(kIntent)), kIntent,
               folder, "heads.intent.", cut);
}

}  // namespace
}  // namespace d9d::test::pipeline_heads_test
