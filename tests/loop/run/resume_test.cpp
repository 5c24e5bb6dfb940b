// Jobs that are interrupted and continue from their checkpoints, on the same ranks or on others.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/loop/task/shard_over_data.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/ranks.h"
#include "tests/support/turns.h"

namespace d9d::test::resume_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr std::int64_t kSteps = 8;
constexpr std::int64_t kSamples = 8;  // of a step

struct Provider : toy::Provider {
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    if (freezes_first) model->first->set_requires_grad(false);
    shard_over_data(context, model.shared(), {model->first.shared(), model->second.shared()});
  }
  StateMapper map_source_checkpoint(const HuggingFaceDirectory& source, const Module& module) override {
    ++num_loads;
    return toy::Provider::map_source_checkpoint(source, module);
  }
  int num_loads = 0;
  bool freezes_first = false;
};

// A metric that counts in a [2, 1] table, like a confusion matrix.
struct TableMetric : Metric {
  at::Tensor compute() const override { return table.value().sum(); }
  std::vector<Accumulator*> accumulators() override { return {&table}; }
  Accumulator table{{2, 1}};
};

struct Task : toy::Task {
  void register_events(const DistContext&, EventBus& events) override {
    events.subscribe(kTrainModelStagesReady, [this](const ModelStagesReady& ready) {
      module = &ready.modules.front().get();
      sums.push_back(sum_of_weight());
    });
    events.subscribe(kTrainStepPost, [this](const FinishedStep& step) {
      losses.push_back(step.loss);
      if (after_step) after_step(step.schedule.current_step());
      sums.push_back(sum_of_weight());
    });
  }
  double sum_of_weight() const { return module->full_state_dict().at("first.weight").sum().item<double>(); }
  ForwardInputs<toy::Types> build_forward_inputs(const toy::Batch& batch) override {
    ForwardInputs<toy::Types> inputs = toy::Task::build_forward_inputs(batch);
    inputs.loss_weights = {{"error", batch.weights.sum()}, {"size", at::full({}, batch.x.size(0))}};
    return inputs;
  }
  LossResult compute_loss(const Output& output, State& state, const JobSchedule& schedule) override {
    const LossResult error = toy::Task::compute_loss(output, state, schedule);
    return {.losses = {{"error", error.loss}, {"size", 0.01 * output.square().mean()}}};
  }
  // Counts the samples of this rank; a resumed task gets an equal share of the total.
  void update_metrics(const State& state, const MetricMap& metrics) override {
    toy::Task::update_metrics(state, metrics);
    num_seen += state.batch.x.size(0);
    table->table.update(at::tensor({state.batch.x.size(0), std::int64_t{0}}).view({2, 1}));
  }
  MetricMap create_metrics() override {
    MetricMap metrics = toy::Task::create_metrics();
    metrics.emplace("table", table);
    return metrics;
  }
  nlohmann::json state() const override { return num_seen; }
  void load_state(const std::vector<nlohmann::json>& of_ranks) override {
    for (const nlohmann::json& each : of_ranks) num_seen += each.get<std::int64_t>();
    num_seen /= num_ranks;
  }
  std::function<void(std::int64_t step)> after_step;
  std::vector<double> losses;
  const Module* module = nullptr;
  std::vector<double> sums;  // sum of a weight, when the model is ready and after each step
  std::int64_t num_seen = 0;
  std::int64_t num_ranks = 1;
  const std::shared_ptr<TableMetric> table = std::make_shared<TableMetric>();
};

// Returns a folder with weights to start from.
fs::path published() {
  static const fs::path folder = [] {
    const auto model = make_module<toy::Model>();
    model->to(at::kDouble);
    model->materialize(at::kCPU);
    model->reset_parameters(5);
    std::vector<TensorSource> tensors;
    for (const auto& [name, tensor] : model->state_dict()) tensors.push_back(tensor_source(name, tensor));
    fs::path path = fs::path(::testing::TempDir()) / "d9d" / "resume_published";
    write_huggingface_directory(path, nlohmann::json::object(), tensors);
    return path;
  }();
  return folder;
}

struct Result {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;
  int num_source_loads = 0;
  std::int64_t num_seen = 0;        // by the task of the main process
  std::vector<double> num_samples;  // of all ranks, as logged
  std::vector<double> tables;       // the sums of TableMetric, as logged
  std::vector<double> sizes;        // loss/size, as logged
  std::vector<double> sums = {};    // Task::sums
};

struct Plan {
  DeviceMeshParameters mesh = {};
  std::optional<fs::path> folder = {};
  std::int64_t fails_at_step = -1;
  OptimizerConfig optimizer = AdamWConfig{.lr = 0.05, .weight_decay = 0.1};
  StepActionPeriod period = {EverySteps{3}};
  std::optional<std::int64_t> num_to_keep = {};
  at::ScalarType dtype = at::kDouble;
  std::optional<Dtype> master_dtype = {};
  std::int64_t total_steps = kSteps;
  bool freezes_first = false;
  bool saves_trainable_only = false;
  FailedSavePolicy on_failed_save = FailedSavePolicy::kStop;
  std::optional<fs::path> source = {};  // none: published()
  bool has_source = true;               // false: weights from the seed
  std::int64_t base_seed = 1;
  std::function<void(std::int64_t step)> after_step = {};  // on the main process
};

Result train(const Plan& plan) {
  Result result;
  run_ranks(RankBackend::kThreads, plan.mesh.world_size(), [&](World& world) {
    const DistContext context({.mesh = plan.mesh, .world = borrowed(world), .local_rank = world.rank()});
    toy::Job job({});
    Task task;
    task.throws_at_step = plan.fails_at_step;
    task.num_ranks = plan.mesh.world_size();
    Provider provider;
    if (context.is_main_process()) task.after_step = plan.after_step;
    provider.freezes_first = plan.freezes_first;
    provider.make_model = [&] {
      auto model = make_module<toy::Model>();
      model->to(plan.dtype);
      return model;
    };
    for (std::int64_t step = 0; step < kSteps; ++step) {
      std::vector<toy::Batch> pack;
      for (std::int64_t i = world.rank(); i < kSamples; i += plan.mesh.world_size()) {
        pack.push_back(toy::samples(kSamples * step + i, 1));
        pack.back().x = pack.back().x.to(plan.dtype);
      }
      provider.packs.push_back(std::move(pack));
    }
    std::optional<fs::path> source;
    job.config.schedule.total_steps = plan.total_steps;
    job.config.logging.period_steps = {EverySteps{4}};
    job.config.determinism.base_seed = plan.base_seed;
    if (plan.has_source) source = plan.source.value_or(published());
    job.config.model_stage_factory = {.source_checkpoint = source,
                                      .checkpoint_only_trainable_parameters = plan.saves_trainable_only,
                                      .master_dtype = plan.master_dtype};
    job.config.checkpointing = {.save_dir = plan.folder.value_or(""),
                                .period_steps = plan.folder ? plan.period : StepActionPeriod{StepActionMode::kDisable},
                                .num_to_keep = plan.num_to_keep,
                                .on_failed_save = plan.on_failed_save};
    AutoOptimizerProvider optimizer(plan.optimizer);
    Trainer<toy::Types> trainer(
        context, job.config,
        {.task = task, .model = provider, .data = provider, .optimizer = optimizer, .lr_scheduler = job.lr_scheduler});
    EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
    const auto parameters = trainer.module().full_state_dict();
    if (!context.is_main_process()) return;
    result = {.losses = task.losses,
              .parameters = {},
              .num_source_loads = provider.num_loads,
              .num_seen = task.num_seen,
              .num_samples = {},
              .tables = {},
              .sizes = {},
              .sums = task.sums};
    for (const auto& [name, tensor] : parameters) result.parameters.emplace(name, tensor.clone());
  });
  for (const nlohmann::json& line : toy::Job::logged()) {
    if (line.contains("num_samples")) result.num_samples.push_back(line.at("num_samples"));
    if (line.contains("table")) result.tables.push_back(line.at("table"));
    if (line.contains("loss/size")) result.sizes.push_back(line.at("loss/size"));
  }
  return result;
}

class Resume : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::vector<std::string> saved() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename().string());
    std::erase(names, "config.json");
    std::ranges::sort(names);
    return names;
  }
  // Ends in the sixth step, after saving the third.
  void break_off(Plan plan) {
    plan.folder = folder_;
    plan.fails_at_step = 5;
    EXPECT_THROW(train(plan), Error);
    EXPECT_THAT(saved(), ElementsAre("save-3"));
  }

  const fs::path folder_ =
      fs::path(::testing::TempDir()) / cat("d9d_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(Resume, Continues_bit_for_bit_as_if_it_had_not_stopped) {
  const std::vector<Plan> plans = {
      {},
      {.optimizer = StochasticAdamWConfig{.lr = 0.05}, .dtype = at::kBFloat16},
      {.dtype = at::kFloat, .master_dtype = Dtype::kFloat64},
      {.mesh = {.data_parallel_shard = 2}},
      {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2},
       .dtype = at::kFloat,
       .master_dtype = Dtype::kFloat64},
  };
  for (Plan plan : plans) {
    fs::remove_all(folder_);
    const Result whole = train(plan);
    EXPECT_EQ(whole.num_source_loads, 1);
    break_off(plan);
    plan.folder = folder_;
    const Result rest = train(plan);
    EXPECT_EQ(rest.num_source_loads, 0);
    EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
    EXPECT_EQ(rest.sums, std::vector<double>(whole.sums.begin() + 3, whole.sums.end()));
    EXPECT_EQ(rest.num_seen, kSteps * kSamples / plan.mesh.world_size());
    ASSERT_EQ(rest.sizes.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_NEAR(rest.sizes[i], whole.sizes.at(i), 1e-12);                  // sums of ranks are added up
    EXPECT_THAT(rest.num_samples, ElementsAre(4 * kSamples, 4 * kSamples));  // the first of three steps and one
    EXPECT_EQ(rest.tables, rest.num_samples);
    for (const auto& [name, values] : whole.parameters) {
      EXPECT_TRUE(at::equal(rest.parameters.at(name), values)) << name << " on " << plan.mesh.world_size() << " ranks";
    }
  }
}

TEST_F(Resume, Continues_on_another_mesh_as_one_rank_would) {
  const std::vector<DeviceMeshParameters> meshes = {{},
                                                    {.data_parallel_shard = 2},
                                                    {.data_parallel_shard = 8},
                                                    {.data_parallel_replicate = 4},
                                                    {.data_parallel_replicate = 2, .data_parallel_shard = 4}};
  const Result whole = train({});
  test::Turns turns(3);
  for (const DeviceMeshParameters& from : meshes) {
    fs::remove_all(folder_);
    break_off({.mesh = from});
    const fs::path kept = folder_.string() + "_kept";
    fs::remove_all(kept);
    fs::copy(folder_, kept, fs::copy_options::recursive);
    for (const DeviceMeshParameters& to : meshes) {
      if (!turns.has_next()) continue;
      fs::remove_all(folder_);
      fs::copy(kept, folder_, fs::copy_options::recursive);
      const Result rest = train({.mesh = to, .folder = folder_});
      ASSERT_EQ(rest.losses.size(), 5U);
      EXPECT_EQ(rest.num_seen, kSteps * kSamples / to.world_size());
      EXPECT_THAT(rest.num_samples, ElementsAre(4 * kSamples, 4 * kSamples));
      for (std::size_t i = 0; i < rest.losses.size(); ++i) EXPECT_NEAR(rest.losses[i], whole.losses[i + 3], 1e-12);
      for (const auto& [name, values] : whole.parameters) {
        EXPECT_TRUE(at::allclose(rest.parameters.at(name), values, 1e-12, 1e-12))
            << name << ": from " << from.world_size() << " to " << to.world_size() << " ranks";
      }
    }
    fs::remove_all(kept);
  }
}

TEST_F(Resume, Saves_at_the_period_and_at_the_end_and_keeps_the_newest) {
  train({.folder = folder_});
  EXPECT_THAT(saved(), ElementsAre("save-3", "save-6", "save-8"));
  fs::remove_all(folder_);
  train({.folder = folder_, .num_to_keep = 1});
  EXPECT_THAT(saved(), ElementsAre("save-8"));
  fs::remove_all(folder_);
  train({.folder = folder_, .period = {StepActionMode::kLastStep}});
  EXPECT_THAT(saved(), ElementsAre("save-8"));
}

TEST_F(Resume, Writes_the_configuration_with_all_defaults_where_it_saves) {
  train({.folder = folder_, .num_to_keep = 2});
  std::ifstream file(fs::path(folder_) / "config.json");
  const auto config = nlohmann::json::parse(file);
  EXPECT_EQ(config.at("trainer").at("checkpointing").at("num_to_keep"), 2);
  EXPECT_EQ(config.at("trainer").at("timeout").at("step_timeout"), 100);
  EXPECT_EQ(config.at("mesh").at("pipeline_parallel"), 1);
  for (const char* const part : {"task", "model", "optimizer", "lr_scheduler"})
    EXPECT_TRUE(config.contains(part)) << part;
}

TEST_F(Resume, Leaves_a_config_of_somebody_else_alone) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "config.json") << "{\"mine\": 1}";
  train({.folder = folder_});
  train({.folder = folder_});
  std::ifstream file(folder_ / "config.json");
  EXPECT_EQ(nlohmann::json::parse(file), nlohmann::json({{"mine", 1}}));
}

TEST_F(Resume, Of_a_job_that_is_done_trains_nothing) {
  const Result whole = train({.folder = folder_});
  const Result again = train({.folder = folder_});
  EXPECT_TRUE(again.losses.empty());
  for (const auto& [name, values] : whole.parameters) EXPECT_TRUE(at::equal(again.parameters.at(name), values)) << name;
}

TEST_F(Resume, With_fewer_steps_than_are_done_is_refused) {
  train({.folder = folder_});
  EXPECT_THAT(
      [&] { train({.folder = folder_, .total_steps = 5}); },
      ThrowsMessage<ConfigError>(HasSubstr("expected at least 8 steps in all, which the checkpoint has done, got 5")));
}

TEST_F(Resume, With_another_model_or_optimiser_is_refused) {
  break_off({});
  EXPECT_THAT([&] { train({.folder = folder_, .dtype = at::kFloat}); },
              ThrowsMessage<StateError>(HasSubstr("others are model.first.bias (Double [3] there, Float [3] here)")));
  EXPECT_THAT([&] { train({.folder = folder_, .optimizer = AdamWConfig{.lr = 0.05, .amsgrad = true}}); },
              ThrowsMessage<StateError>(HasSubstr("it lacks optimizer.first.bias.max_exp_avg_sq")));
}

TEST_F(Resume, With_frozen_parameters_saves_the_others_alone) {
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{}, DeviceMeshParameters{.data_parallel_shard = 2}}) {
    Plan plan{.mesh = mesh, .freezes_first = true, .saves_trainable_only = true};
    fs::remove_all(folder_);
    const Result whole = train(plan);
    break_off(plan);
    const auto saved_names = checkpoint_at(folder_).value().tensors("model.").names;
    EXPECT_THAT(saved_names, ElementsAre("second.bias", "second.weight"));
    plan.folder = folder_;
    const Result rest = train(plan);
    EXPECT_EQ(rest.num_source_loads, 1);  // the frozen ones come from there again
    EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
    for (const auto& [name, values] : whole.parameters)
      EXPECT_TRUE(at::equal(rest.parameters.at(name), values)) << name;
    plan.saves_trainable_only = false;
    EXPECT_THAT([&] { train(plan); },
                ThrowsMessage<ConfigError>(HasSubstr("checkpoint_only_trainable_parameters = true, with which")));
  }
}

TEST_F(Resume, With_frozen_parameters_from_elsewhere_is_refused) {
  for (const bool has_source : {true, false}) {
    Plan plan{.freezes_first = true, .saves_trainable_only = true, .has_source = has_source};
    fs::remove_all(folder_);
    const Result whole = train(plan);
    break_off(plan);
    plan.folder = folder_;
    plan.has_source = !has_source;
    EXPECT_THAT([&] { train(plan); },
                ThrowsMessage<ConfigError>(HasSubstr("expected trainer.model_stage_factory.source_checkpoint = ")));
    plan.has_source = has_source;
    plan.base_seed = 2;
    if (!has_source) {
      EXPECT_THAT([&] { train(plan); },
                  ThrowsMessage<ConfigError>(HasSubstr("expected trainer.determinism.base_seed = 1, with which")));
      plan.base_seed = 1;
    }
    EXPECT_EQ(train(plan).losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
  }
}

// A job that continues takes its frozen weights from the checkpoint with which it began, even if the other job has
// written newer checkpoints since.
TEST_F(Resume, Takes_frozen_parameters_from_the_checkpoint_that_the_job_before_took_them_from) {
  const fs::path other = folder_.string() + "_other";
  fs::remove_all(other);
  train({.folder = other, .total_steps = 6});
  Plan plan{.freezes_first = true, .saves_trainable_only = true, .source = other};
  const Result whole = train(plan);
  break_off(plan);
  train({.folder = other});
  ASSERT_TRUE(fs::exists(other / "save-8"));
  plan.folder = folder_;
  fs::copy(folder_, other / "kept", fs::copy_options::recursive);
  EXPECT_EQ(train(plan).losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
  const auto again = [&](const fs::path& source) {
    fs::remove_all(folder_);
    fs::copy(other / "kept", folder_, fs::copy_options::recursive);
    plan.source = source;
    return train(plan).losses;
  };
  EXPECT_THAT(
      [&] { again(other / "save-8"); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("source_checkpoint = " + (other / "save-6").string() + ", with which"),
                                       HasSubstr("got " + (other / "save-8").string()))));
  fs::rename(other / "save-6", other / "moved");
  EXPECT_THAT([&] { again(other); }, ThrowsMessage<ConfigError>(HasSubstr((other / "save-6").string())));
  fs::create_directory_symlink(other / "moved", other / "save-6");
  EXPECT_EQ(again(other / "save-6"), std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
  fs::remove_all(other);
}

TEST_F(Resume, Refuses_at_its_start_what_is_in_the_way_of_a_save) {
  for (const char* const name : {"save-5", "save-8", "save-9"}) {
    fs::remove_all(folder_);
    fs::create_directories(folder_ / name);
    std::int64_t num_steps = 0;
    const auto run = [&] { train({.folder = folder_, .after_step = [&](std::int64_t) { ++num_steps; }}); };
    if (name == std::string("save-9")) {  // beyond its last step
      EXPECT_NO_THROW(run());
      continue;
    }
    EXPECT_THAT(run, ThrowsMessage<IoError>(HasSubstr("got " + (folder_ / name).string() + " without a manifest")));
    EXPECT_EQ(num_steps, 0);
  }
}

TEST_F(Resume, Is_refused_while_another_job_saves_in_the_same_folder) {
  std::string refused;
  const auto second = [&](std::int64_t step) {
    if (step != 4) return;
    try {
      train({.folder = folder_});
    } catch (const Error& error) {
      refused = error.what();
    }
  };
  EXPECT_EQ(train({.folder = folder_, .after_step = second}).losses.size(), kSteps);
  EXPECT_THAT(refused, AllOf(HasSubstr(folder_.string()), HasSubstr("in use by no other job")));
  EXPECT_THAT(saved(), ElementsAre("save-3", "save-6", "save-8"));
}

TEST_F(Resume, Begins_with_the_weights_of_a_checkpoint_of_another_job) {
  const Plan saving{.mesh = {.data_parallel_shard = 4}, .folder = folder_};
  const Result first = train(saving);
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{}, DeviceMeshParameters{.data_parallel_shard = 2}}) {
    for (const fs::path& source : {folder_, folder_ / "save-8"}) {
      const Result second = train({.mesh = mesh, .source = source});
      EXPECT_EQ(second.num_source_loads, 0);  // no mapper is asked for
      EXPECT_EQ(second.sums.front(), first.sums.back());
      EXPECT_EQ(second.losses.size(), kSteps);  // with steps, moments and data of its own
    }
  }
  EXPECT_EQ(train({.source = folder_ / "save-3"}).sums.front(), first.sums[3]);
}

TEST_F(Resume, Of_a_disk_that_is_full_stops_or_goes_on_as_asked) {
  // The first save cannot create its file. The next save, which is not the last, waits for it.
  const auto spoil = [this](std::int64_t step) {
    if (step == 1) fs::create_directories(folder_ / "save-3.tmp" / "rank-0.cbor" / "x");
  };
  const Plan plan{.folder = folder_, .after_step = spoil};
  EXPECT_THAT([&] { train(plan); }, ThrowsMessage<IoError>(HasSubstr("rank-0.cbor")));
  EXPECT_THAT(saved(), IsEmpty());
  fs::remove_all(folder_);
  Plan continuing = plan;
  continuing.on_failed_save = FailedSavePolicy::kContinue;
  EXPECT_EQ(train(continuing).losses.size(), kSteps);
  EXPECT_THAT(saved(), ElementsAre("save-6", "save-8"));
}

TEST_F(Resume, Of_a_job_that_fails_right_after_a_save_has_lost_nothing) {
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{}, DeviceMeshParameters{.data_parallel_shard = 4}}) {
    fs::remove_all(folder_);
    EXPECT_THROW(train({.mesh = mesh, .folder = folder_, .fails_at_step = 3}), Error);
    EXPECT_THAT(saved(), ElementsAre("save-3"));
  }
}

}  // namespace
}  // namespace d9d::test::resume_test
