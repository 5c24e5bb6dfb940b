// Trains on preferences over every axis of a mesh, with both references, and with everything else that a job may do.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/loop/language_model/dpo/dpo_job.h"

namespace d9d::test::dpo_training_test {
namespace {

using dpo::DpoJob;
using dpo::expect_same_job;
using dpo::train;
using dpo::Trained;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const PeftConfig kAdapters = LoraConfig{.module_name_pattern = ".*_proj", .params = {.r = 2, .alpha = 4.0}};
const PeftConfig kMagnitudes = DoraConfig{.module_name_pattern = ".*[qv]_proj", .params = {.r = 2, .alpha = 4.0}};

std::vector<double> series(const Trained& trained, const std::string& name) {
  return pipeline::series_of(trained).at(name);
}

void expect_that_layouts_change_nothing(const DpoJob& job, const std::vector<DeviceMeshParameters>& meshes) {
  const Trained expected = train(job);
  EXPECT_NEAR(series(expected, "rewards/margins").front(), 0, 1e-12);  // the model is its reference
  // Experts add their auxiliary loss.
  if (!job.job.has_experts) {
    EXPECT_NEAR(series(expected, "loss").front(), std::log(2.0), 1e-12);
  }
  EXPECT_GT(series(expected, "rewards/margins").back(), 0.1);
  for (const DeviceMeshParameters& mesh : meshes) {
    SCOPED_TRACE(write_record(mesh).dump());
    DpoJob distributed = job;
    distributed.job.mesh = mesh;
    expect_same_job(train(distributed), expected);
  }
}

const std::vector<DeviceMeshParameters> kDense = {
    {.data_parallel_replicate = 2},
    {.data_parallel_shard = 2},
    {.context_parallel_shard = 2},
    {.context_parallel_replicate = 2},
    {.tensor_parallel = 2},
    {.pipeline_parallel = 2},
    {.data_parallel_shard = 2, .context_parallel_shard = 2},
    {.data_parallel_replicate = 2, .context_parallel_replicate = 2},
    {.pipeline_parallel = 2, .context_parallel_shard = 2},
    {.pipeline_parallel = 2, .data_parallel_shard = 2},
    {.context_parallel_shard = 2, .tensor_parallel = 2},
};

TEST(DpoTraining, Of_a_copy_equals_one_rank_over_every_axis) { expect_that_layouts_change_nothing({}, kDense); }

TEST(DpoTraining, Of_a_copy_equals_one_rank_with_experts) {
  expect_that_layouts_change_nothing(
      {.job = {.has_experts = true}},
      {{.data_parallel_shard = 2, .expert_parallel = 2}, {.context_parallel_shard = 2}, {.pipeline_parallel = 2}});
}

TEST(DpoTraining, Without_adapters_equals_one_rank_over_every_axis) {
  expect_that_layouts_change_nothing({.job = {.ties_embeddings = true, .adapters = kAdapters}}, kDense);
}

TEST(DpoTraining, Over_processes_of_gloo_equals_one_rank) {
  const Trained expected = train({});
  expect_same_job(
      train({.job = {.mesh = {.pipeline_parallel = 2, .context_parallel_shard = 2}, .backend = RankBackend::kGloo}}),
      expected);
}

TEST(DpoTraining, Equals_one_stage_in_every_schedule) {
  for (const std::optional<PeftConfig>& adapters : {std::optional<PeftConfig>(), std::optional(kAdapters)}) {
    const Trained expected = train({.job = {.adapters = adapters}});
    for (const PipelineScheduleConfig& schedule : pipeline::schedules()) {
      SCOPED_TRACE(write_record(schedule).dump());
      expect_same_job(train({.job = {.mesh = {.pipeline_parallel = 2}, .schedule = schedule, .adapters = adapters}}),
                      expected);
    }
  }
}

// The copy has adapters too, whose terms are 0: the references are the same function of the inputs.
TEST(DpoTraining, Has_one_reference_by_both_ways_while_only_adapters_are_trained) {
  for (const PeftConfig& adapters : {kAdapters, kMagnitudes}) {
    DpoJob job{.job = {.adapters = adapters}};
    const Trained chosen = train(job);
    EXPECT_THAT(chosen.log, HasSubstr("reference: the model without its adapters"));
    job.dpo.reference = ReferenceWeights::kFrozenCopy;
    const Trained copied = train(job);
    EXPECT_THAT(copied.log, HasSubstr("reference: a frozen copy of the model as the job began"));
    expect_same_job(copied, chosen);
  }
}

TEST(DpoTraining, Chooses_a_copy_where_more_than_adapters_is_trained) {
  const PeftConfig stack = StackConfig{.methods = {kAdapters, FullTuneConfig{.module_name_pattern = ".*norm"}}};
  EXPECT_THAT(train({.job = {.adapters = stack}}).log, HasSubstr("reference: a frozen copy"));
  EXPECT_THAT(train({}).log, HasSubstr("reference: a frozen copy"));
  const auto trains = [](const std::optional<PeftConfig>& adapters) {
    return [=] {
      (void)train({.job = {.mesh = {.pipeline_parallel = 2}, .adapters = adapters},
                   .dpo = {.reference = ReferenceWeights::kWithoutAdapters}});
    };
  };
  EXPECT_THAT(trains(stack), ThrowsMessage<ConfigError>(
                                 AllOf(HasSubstr("[loop::reference]"), HasSubstr("norm"), HasSubstr("frozen_copy"))));
  EXPECT_THAT(trains(std::nullopt), ThrowsMessage<ConfigError>(HasSubstr("a model with adapters")));
}

// The bias that balances experts changes while the router's weights are frozen.
TEST(DpoTraining, Chooses_a_copy_where_training_changes_a_buffer) {
  DpoJob job{.job = {.has_experts = true, .bias_update_rate = 0.3, .adapters = kAdapters, .num_steps = 5}};
  const Trained chosen = train(job);
  EXPECT_THAT(chosen.log, HasSubstr("reference: a frozen copy"));
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{.data_parallel_shard = 2, .expert_parallel = 2},
                                           DeviceMeshParameters{.pipeline_parallel = 2}}) {
    DpoJob distributed = job;
    distributed.job.mesh = mesh;
    expect_same_job(train(distributed), chosen);
  }
  job.dpo.reference = ReferenceWeights::kWithoutAdapters;
  EXPECT_THAT([&] { (void)train(job); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("[loop::reference]"), HasSubstr("router.expert_bias"))));
}

TEST(DpoTraining, Chooses_a_copy_where_the_source_has_values_of_the_adapters) {
  std::filesystem::remove_all(pipeline::folder());
  (void)pipeline::train({.adapters = kAdapters, .num_steps = 2, .save_dir = "adapted", .save_period = 2});
  (void)pipeline::train({.num_steps = 2, .save_dir = "plain", .save_period = 2});
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{}, DeviceMeshParameters{.pipeline_parallel = 2}}) {
    DpoJob job{.job = {.mesh = mesh, .adapters = kAdapters}};
    job.job.model.source_checkpoint = pipeline::folder() / "adapted";
    const Trained adapted = train(job);
    EXPECT_THAT(adapted.log, HasSubstr("reference: a frozen copy"));
    EXPECT_NEAR(series(adapted, "rewards/margins").front(), 0, 1e-12);
    job.job.model.source_checkpoint = pipeline::folder() / "plain";
    EXPECT_THAT(train(job).log, HasSubstr("reference: the model without its adapters"));
  }
}

// Keeps only the logged values from `step` on.
Trained since(Trained trained, std::int64_t step) {
  std::erase_if(trained.logged, [&](const nlohmann::json& line) { return line.value("step", step) < step; });
  return trained;
}

TEST(DpoTraining, Continues_from_a_checkpoint_with_the_reference_of_the_first_start) {
  const std::filesystem::path saves = pipeline::folder() / "saves";
  for (const std::optional<PeftConfig>& adapters : {std::optional<PeftConfig>(), std::optional(kAdapters)}) {
    for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{}, DeviceMeshParameters{.data_parallel_shard = 2}}) {
      std::filesystem::remove_all(saves);
      const DpoJob job{
          .job = {.mesh = mesh, .adapters = adapters, .num_steps = 4, .save_dir = "saves", .save_period = 2}};
      const Trained whole = train(job);
      std::filesystem::remove_all(saves / "save-4");
      const Trained resumed = train(job);
      EXPECT_EQ(series(resumed, "loss").size(), 2);
      pipeline::expect_equal(resumed, since(whole, 2));
    }
  }
  std::filesystem::remove_all(saves);
}

TEST(DpoTraining, Continues_with_the_source_that_it_began_with_although_that_has_gone_on) {
  std::filesystem::remove_all(pipeline::folder());
  (void)pipeline::train({.num_steps = 1, .save_dir = "source"});
  DpoJob job{.job = {.num_steps = 4, .save_dir = "saves", .save_period = 2}};
  job.job.model.source_checkpoint = pipeline::folder() / "source";
  const Trained whole = train(job);
  (void)pipeline::train({.num_steps = 2, .save_dir = "source"});
  const auto again = [&] {
    std::filesystem::remove_all(pipeline::folder() / "saves" / "save-4");
    return train(job);
  };
  pipeline::expect_equal(again(), since(whole, 2));
  std::filesystem::remove_all(pipeline::folder() / "source" / "save-1");
  EXPECT_THAT(again, ThrowsMessage<ConfigError>(AllOf(HasSubstr("save-1"), HasSubstr("the reference is not in it"))));
}

TEST(DpoTraining, Refuses_to_continue_with_a_reference_that_is_another) {
  std::filesystem::remove_all(pipeline::folder());
  (void)pipeline::train({.num_steps = 1, .save_dir = "source"});
  const DpoJob job{.job = {.num_steps = 2, .save_dir = "saves", .save_period = 2}};
  (void)train(job);
  DpoJob other = job;
  other.job.model.source_checkpoint = pipeline::folder() / "source";
  EXPECT_THAT([&] { (void)train(other); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("source_checkpoint = null"), HasSubstr("the reference"))));
  other = job;
  other.job.model.source_adapters = pipeline::folder() / "adapters";
  EXPECT_THAT([&] { (void)train(other); }, ThrowsMessage<ConfigError>(HasSubstr("source_adapters = null")));
  other = job;
  other.job.base_seed = 7;
  EXPECT_THAT([&] { (void)train(other); }, ThrowsMessage<ConfigError>(HasSubstr("base_seed = ")));
}

TEST(DpoTraining, Changes_no_bit_asleep) {
  for (const std::optional<PeftConfig>& adapters : {std::optional<PeftConfig>(), std::optional(kAdapters)}) {
    for (const DeviceMeshParameters& mesh :
         {DeviceMeshParameters{.pipeline_parallel = 2}, DeviceMeshParameters{.data_parallel_shard = 2}}) {
      DpoJob job{.job = {.mesh = mesh, .adapters = adapters, .evaluated = {1}}};
      const Trained awake = train(job);
      job.job.sleeps = {SleepTag::kTensorStates, SleepTag::kComms};
      pipeline::expect_equal(train(job), awake);
    }
  }
}

TEST(DpoTraining, Evaluates_against_the_reference_and_leaves_training_as_it_is) {
  for (const std::optional<PeftConfig>& adapters : {std::optional<PeftConfig>(), std::optional(kAdapters)}) {
    DpoJob job{.job = {.adapters = adapters, .ema = AveragedWeightsConfig{}}};
    const Trained without = train(job);
    job.job.evaluated = {1};
    const Trained evaluated = train(job);
    pipeline::expect_equal(pipeline::without_evaluation(evaluated), without);
    EXPECT_NEAR(series(evaluated, "validation/loss").front(), std::log(2.0), 1e-12);
    EXPECT_GT(series(evaluated, "validation/rewards/margins").back(), 0.0);
    job.job.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2};
    expect_same_job(train(job), evaluated);
  }
}

// Counts the forwards without gradients, those of them in training mode, and their parameters that are trained.
struct Counting : ModuleHook {
  void before_forward(Module& module, const TensorRefs&) override {
    if (at::GradMode::is_enabled()) return;
    ++num_without_gradients;
    if (module.is_training()) ++num_in_training;
    for (const auto& [name, parameter] : module.named_parameters()) num_trained += parameter->requires_grad() ? 1 : 0;
  }
  void after_forward(Module&, const TensorRefs&) override {}
  std::int64_t num_without_gradients = 0, num_in_training = 0, num_trained = 0;
};

TEST(DpoTraining, Runs_each_reference_once_a_microbatch_in_evaluation_mode) {
  for (const std::optional<PeftConfig>& adapters : {std::optional<PeftConfig>(), std::optional(kAdapters)}) {
    const auto counting = std::make_shared<Counting>();
    DpoJob job{.job = {.adapters = adapters}};
    job.job.on_stage = [&](const PipelineStageInfo&, Module& stage) { stage.add_hook(counting); };
    (void)train(job);
    EXPECT_EQ(counting->num_without_gradients, 4 * pipeline::kNumSteps);
    EXPECT_EQ(counting->num_in_training, 0);
    EXPECT_EQ(counting->num_trained, 0);
  }
}

// Draws random numbers of ATen in each forward with gradients and, if `draws`, in others.
struct Drawing : ModuleHook {
  void before_forward(Module&, const TensorRefs&) override {
    if (at::GradMode::is_enabled()) {
      of_training.push_back(at::rand({1}, at::kDouble).item<double>());
    } else if (draws) {
      (void)at::rand({7});
    }
  }
  void after_forward(Module&, const TensorRefs&) override {}
  bool draws = false;
  std::vector<double> of_training;
};

TEST(DpoTraining, Draws_no_random_numbers_of_training_in_its_reference) {
  for (const std::optional<PeftConfig>& adapters : {std::optional<PeftConfig>(), std::optional(kAdapters)}) {
    std::vector<double> drawn[2];
    for (const bool draws : {false, true}) {
      const auto drawing = std::make_shared<Drawing>();
      drawing->draws = draws;
      DpoJob job{.job = {.adapters = adapters}};
      job.job.on_stage = [&](const PipelineStageInfo&, Module& stage) { stage.add_hook(drawing); };
      at::manual_seed(1);
      (void)train(job);
      drawn[draws] = drawing->of_training;
    }
    EXPECT_EQ(drawn[0].size(), 4 * pipeline::kNumSteps);
    EXPECT_EQ(drawn[1], drawn[0]);
  }
}

// Collects the dtypes of the parameters in forwards without gradients.
struct Dtypes : ModuleHook {
  void before_forward(Module& module, const TensorRefs&) override {
    if (at::GradMode::is_enabled()) return;
    for (const auto& [name, parameter] : module.named_parameters()) seen.insert(parameter->stored().scalar_type());
  }
  void after_forward(Module&, const TensorRefs&) override {}
  std::set<at::ScalarType> seen;
};

// The copy has no master weights, and computes with the same rounded ones.
TEST(DpoTraining, With_master_weights_begins_as_its_reference) {
  std::filesystem::remove_all(pipeline::folder() / "source");
  (void)pipeline::train({.num_steps = 1, .save_dir = "source"});
  for (const bool has_source : {false, true}) {
    DpoJob job{.job = {.model = {.master_dtype = Dtype::kFloat64}, .dtype = at::kFloat}};
    if (has_source) job.job.model.source_checkpoint = pipeline::folder() / "source";
    const auto dtypes = std::make_shared<Dtypes>();
    job.job.on_stage = [&](const PipelineStageInfo&, Module& stage) { stage.add_hook(dtypes); };
    const Trained trained = train(job);
    EXPECT_EQ(dtypes->seen, std::set{at::kFloat});
    EXPECT_EQ(series(trained, "rewards/margins").front(), 0) << has_source;
    EXPECT_GT(series(trained, "rewards/margins").back(), 0.01) << has_source;
  }
}

TEST(DpoTraining, Refuses_graphs_a_budget_and_an_automatic_schedule_by_name) {
  EXPECT_THAT([] { (void)train({.job = {.has_graphs = true}}); },
              ThrowsMessage<ConfigError>(HasSubstr("[loop::reference] expected trainer.cuda_graph = null")));
  EXPECT_THAT([] { (void)train({.job = {.mesh = {.pipeline_parallel = 2}, .schedule = AutoScheduleConfig{}}}); },
              ThrowsMessage<ConfigError>(HasSubstr("trainer.pipelining.schedule")));
  const MemoryBudgetConfig budget{.device = {.size = ByteSize{1 << 30}}};
  EXPECT_THAT([&] { (void)train({.job = {.memory_budget = budget}}); },
              ThrowsMessage<ConfigError>(HasSubstr("[loop::reference] expected trainer.memory_budget = null")));
}

}  // namespace
}  // namespace d9d::test::dpo_training_test
