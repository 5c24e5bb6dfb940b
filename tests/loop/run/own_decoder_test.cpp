// A custom decoder with attention and a tied head, in stages and shards, trains, exports and continues as the model in
// one piece does, in float64.
#include "tests/loop/run/own_decoder.h"

#include <filesystem>
#include <mutex>
#include <set>

#include <gtest/gtest.h>

#include "d9d/data/pack/as_pack_stream.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/loop/task/shard_over_data.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/mapper/compose.h"

#include "tests/support/compare.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerances.h"

namespace d9d::test::own_decoder_test {
namespace {

namespace fs = std::filesystem;
using own_decoder::Decoder;
using own_decoder::Ids;
using own_decoder::Logits;

constexpr std::int64_t kNumMicrobatches = 8, kNumSteps = 4, kSaved = 2;

struct Batch {
  at::Tensor ids, labels;  // [B, S] int64
  static constexpr auto fields() { return record<Batch>(field("ids", &Batch::ids), field("labels", &Batch::labels)); }
};
struct Types {
  using Batch = own_decoder_test::Batch;
  using Input = Ids;
  using Transfer = Decoder::Hidden;
  using Shared = std::monostate;
  using Output = Logits;
  using State = own_decoder_test::Batch;
};

struct Task : TrainTask<Types> {
  ForwardInputs<Types> build_forward_inputs(const Batch& batch) override {
    return {.input = {batch.ids}, .shared = {}, .state = batch, .num_tokens = batch.ids.numel()};
  }
  LossResult compute_loss(const Logits& output, Batch& state, const JobSchedule&) override {
    return {.loss = at::cross_entropy_loss(output.logits.flatten(0, 1), state.labels.flatten()),
            .loss_weight = at::scalar_tensor(static_cast<double>(state.labels.numel()))};
  }
};

struct Stream {
  std::optional<std::vector<Batch>> next() {
    std::vector<Batch> pack;
    const std::int64_t share = kNumMicrobatches / num_ranks;
    for (std::int64_t i = rank * share; i < (rank + 1) * share; ++i) {
      const std::int64_t length = 3 + (step + i) % 5, seed = 1 + step * kNumMicrobatches + i;
      const at::Tensor position = at::arange(2 * length);
      const at::Tensor ids = (position * position * 3 + position * seed + seed).remainder(own_decoder::kVocabulary);
      pack.push_back({.ids = ids.view({2, length}), .labels = ids.roll(-1).view({2, length})});
    }
    ++step;
    return pack;
  }
  std::optional<std::int64_t> total_steps() const { return std::nullopt; }
  nlohmann::json state() const { return step; }
  void load_state(const nlohmann::json& state) { step = state; }
  std::int64_t rank = 0, num_ranks = 1, step = 0;
};

struct Provider : ModelProvider<Types>, DataProvider<Batch> {
  ModelStage<Types> initialize_model_stage(const DistContext&, const PipelineStageInfo& stage) override {
    model = make_module<Decoder>(stage);
    return as_model_stage<Types>(model);
  }
  ModelExport prepare_export(const Module&) override {
    std::set<std::string> names;
    for (const auto& [name, tensor] : make_module<Decoder>(PipelineStageInfo())->state_dict()) names.insert(name);
    return {.mapper = mapper::identities(names)};
  }
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    std::vector<std::shared_ptr<Module>> units = {model->tokens.shared()};
    for (const auto& layer : model->layers) units.push_back(layer.shared());
    shard_over_data(context, model.shared(), units);
  }
  std::unique_ptr<PackStream<Batch>> build_pack_stream(const DistContext& context,
                                                       std::optional<std::int64_t>) override {
    return as_pack_stream<Batch>(
        Stream{.rank = context.data_parallel_rank(), .num_ranks = context.data_parallel_size()});
  }
  ModulePtr<Decoder> model;
};

struct Layout {
  DeviceMeshParameters mesh = {};
  PipelineScheduleConfig schedule = {};
};

fs::path folder() {
  return fs::path(::testing::TempDir()) /
         cat("d9d_own_decoder_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
}

// Returns the parameters of the trained model, which is also exported to `export_to`.
std::map<std::string, at::Tensor> train(const Layout& layout, const fs::path& save_dir = {}) {
  std::map<std::string, at::Tensor> trained;
  std::mutex mutex;
  run_ranks(RankBackend::kThreads, layout.mesh.world_size(), [&](World& world) {
    const DistContext context(
        {.mesh = layout.mesh, .world = borrowed(world), .local_rank = world.rank(), .log_sink = [](std::string_view) {
         }});
    Task task;
    Provider provider;
    AutoOptimizerProvider optimizer(AdamWConfig{.lr = 1e-2});
    AutoLRSchedulerProvider lr_scheduler(
        PiecewiseConfig{.initial_multiplier = 1.0,
                        .phases = {RestPhaseConfig{.target_multiplier = 0.5, .curve = LinearCurveConfig{}}}});
    TrainerConfig config;
    config.run.name = "own decoder";
    config.schedule.total_steps = kNumSteps;
    config.pipelining.schedule = layout.schedule;
    config.checkpointing.period_steps = {StepActionMode::kDisable};
    if (!save_dir.empty()) config.checkpointing = {.save_dir = save_dir, .period_steps = {EverySteps{kSaved}}};
    Trainer<Types> trainer(context, config,
                           {.task = task,
                            .model = provider,
                            .data = provider,
                            .optimizer = optimizer,
                            .lr_scheduler = lr_scheduler,
                            .tracker = nullptr});
    ASSERT_EQ(trainer.train(), TrainingOutcome::kFinished);
    trainer.export_to(folder() / "export");
    const auto whole = trainer.module().full_state_dict();
    const std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : whole) trained.insert_or_assign(name, tensor.detach().clone());
  });
  return trained;
}

std::vector<Layout> layouts() {
  return {{.mesh = {.data_parallel_shard = 2}},
          {.mesh = {.pipeline_parallel = 2}, .schedule = OneFOneBScheduleConfig{}},
          {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2}, .schedule = OneFOneBScheduleConfig{}},
          {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2}, .schedule = ZeroBubbleVScheduleConfig{}},
          {.mesh = {.pipeline_parallel = 2, .data_parallel_replicate = 2},
           .schedule = OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true}}};
}

class OwnDecoder : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder()); }
  void TearDown() override { fs::remove_all(folder()); }
};

TEST_F(OwnDecoder, In_stages_and_shards_trains_and_exports_as_in_one_piece) {
  const auto expected = train({});
  EXPECT_TRUE(expected.contains("tokens.weight") && expected.contains("layer3.norm2.bias"));
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(cat(schedule_of(layout.schedule).name, " on ", layout.mesh.world_size()));
    fs::remove_all(folder());
    EXPECT_EQ(difference(train(layout), expected, tolerance("fp64")), "");
    const HuggingFaceDirectory exported(folder() / "export");
    const auto names = exported.names();
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      const auto source = exported.find(name);
      ASSERT_TRUE(source.has_value()) << name;
      EXPECT_EQ(difference(name, source->read(), tensor, tolerance("fp64")), "");
    }
  }
}

TEST_F(OwnDecoder, Continues_on_other_stages_as_one_piece_would) {
  const auto expected = train({});
  const std::vector<Layout> all = layouts();
  for (std::size_t i = 0; i < all.size(); ++i) {
    fs::remove_all(folder());
    (void)train(all[i], folder() / "save");
    fs::remove_all(folder() / "save" / cat("save-", kNumSteps));
    SCOPED_TRACE(i);
    EXPECT_EQ(difference(train(all[(i + 1) % all.size()], folder() / "save"), expected, tolerance("fp64")), "");
  }
}

}  // namespace
}  // namespace d9d::test::own_decoder_test
