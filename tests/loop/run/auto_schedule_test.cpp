// trainer.pipelining.schedule = auto: a job that measures its stages trains bit for bit as a job with the chosen
// schedule by name.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/config/record_json.h"
#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/pipelining/simulator/memory.h"

#include "tests/loop/run/pipeline_job.h"

namespace d9d::test::auto_schedule_test {
namespace {

namespace fs = std::filesystem;
using pipeline::expect_equal;
using pipeline::expect_same;
using pipeline::folder;
using pipeline::in_one_piece;
using pipeline::PipelineJob;
using pipeline::train;
using pipeline::Trained;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Values about the pipeline in the checkpoint of a job.
nlohmann::json saved_value(const char* name) { return value_of(checkpoint_at(folder() / "saves").value(), name); }
PipelineScheduleConfig saved_schedule() {
  return parse_record<PipelineScheduleConfig>(Json(saved_value("trainer").at("pipelining").at("schedule")));
}

class AutoSchedule : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder()); }
  void TearDown() override { fs::remove_all(folder()); }

  // Trains with auto, and then with the chosen schedule by name.
  static void expect_no_trace(PipelineJob job, const AutoScheduleConfig& config = {.max_stages_per_rank = 2}) {
    fs::remove_all(folder() / "saves");
    job.schedule = config;
    job.save_dir = "saves";
    job.save_period = pipeline::kNumSteps;
    const Trained chosen = train(job);
    job.schedule = saved_schedule();
    ASSERT_FALSE(std::holds_alternative<AutoScheduleConfig>(job.schedule));
    SCOPED_TRACE(schedule_of(job.schedule).name);
    EXPECT_EQ(saved_value("auto_schedule").at("schedule"), "auto");
    job.save_dir = "";
    const Trained named = train(job);
    expect_equal(chosen, named);
    EXPECT_THAT(chosen.log, HasSubstr("= auto: measured the model"));
    EXPECT_THAT(chosen.log, HasSubstr("* " + schedule_of(job.schedule).name));
    EXPECT_THAT(named.log, Not(HasSubstr("measured")));
  }
};

TEST_F(AutoSchedule, Leaves_no_trace_in_what_is_trained) {
  for (const std::int64_t num_ranks : {2, 4}) expect_no_trace({.mesh = {.pipeline_parallel = num_ranks}});
}

TEST_F(AutoSchedule, Leaves_no_trace_of_any_schedule_that_it_may_choose) {
  for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::kLoopedBfs, ScheduleKind::kOneFOneB,
                                  ScheduleKind::kZeroBubbleV, ScheduleKind::kDualPipeV}) {
    expect_no_trace({.mesh = {.pipeline_parallel = 2}, .checkpoints = true},
                    {.max_stages_per_rank = 2, .schedules = {kind}});
    EXPECT_EQ(enum_name(kind), std::visit([](const auto& one) { return one.kTag.value; }, saved_schedule()));
  }
}

TEST_F(AutoSchedule, Leaves_no_trace_with_sharded_stages_experts_and_packed_documents) {
  const FsdpConfig once{.reshard_after_forward = ReshardAfterForward::kNever, .reduce_on_last_microbatch = true};
  const FsdpConfig always{.reshard_after_forward = ReshardAfterForward::kAlways};
  for (const FsdpConfig& fsdp : {once, always}) {
    expect_no_trace({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2}, .fsdp = fsdp});
  }
  expect_no_trace(
      {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2, .expert_parallel = 2}, .has_experts = true});
  expect_no_trace({.mesh = {.pipeline_parallel = 2, .data_parallel_replicate = 2}, .rows = pipeline::Rows::kPacked});
}

TEST_F(AutoSchedule, Leaves_no_trace_over_sockets) {
  expect_no_trace({.mesh = {.pipeline_parallel = 2}, .backend = RankBackend::kGloo});
}

TEST_F(AutoSchedule, Leaves_random_numbers_of_LibTorch_where_they_were) {
  std::vector<double> drawn;  // only the last stage draws
  PipelineJob job{.mesh = {.pipeline_parallel = 2}, .on_loss = [&](LossResult& result) {
                    drawn.push_back(at::rand({}, at::kDouble).item<double>());
                    result.loss = result.loss * drawn.back();
                  }};
  const auto drawn_with = [&](const PipelineScheduleConfig& schedule) {
    job.schedule = schedule;
    drawn.clear();
    at::manual_seed(17);
    const Trained trained = train(job);
    return std::pair(trained, drawn);
  };
  const AutoScheduleConfig only{.max_stages_per_rank = 1, .schedules = {ScheduleKind::kGPipe}};
  const auto [chosen, drawn_by_auto] = drawn_with(only);
  const auto [named, drawn_by_name] = drawn_with(GPipeScheduleConfig{});
  EXPECT_GT(drawn_by_auto.size(), drawn_by_name.size());  // the measurement draws too
  expect_equal(chosen, named);
}

TEST_F(AutoSchedule, Of_one_rank_is_the_model_in_one_piece_and_measures_nothing) {
  const Trained trained = train({.schedule = AutoScheduleConfig{}});
  expect_equal(trained, in_one_piece());
  EXPECT_THAT(trained.log, Not(HasSubstr("measured")));
}

TEST_F(AutoSchedule, Leaves_out_cuts_that_the_model_refuses_and_says_so) {
  const Trained trained =
      train({.mesh = {.pipeline_parallel = 4}, .schedule = AutoScheduleConfig{.max_stages_per_rank = 3}});
  expect_same(trained, in_one_piece());
  EXPECT_THAT(trained.log, HasSubstr("measured the model in 2 numbers of stages"));
  EXPECT_THAT(trained.log, HasSubstr("Not tried: [pipelining::stage] expected at least one layer a stage"));
}

TEST_F(AutoSchedule, A_model_that_no_cut_suits_is_refused_with_its_reason) {
  const std::string error = pipeline::error_of({.mesh = {.pipeline_parallel = 2},
                                                .schedule = AutoScheduleConfig{},
                                                .on_stage = [](const PipelineStageInfo& stage, Module&) {
                                                  D9D_CHECK(!stage.is_last(), ConfigError, "no such stage");
                                                }});
  EXPECT_THAT(error, AllOf(HasSubstr("refuses every number of them"), HasSubstr("no such stage")));
}

TEST_F(AutoSchedule, Writes_costs_that_the_plot_reads) {
  const fs::path file = folder() / "costs.json";
  (void)train({.mesh = {.pipeline_parallel = 2},
               .schedule = AutoScheduleConfig{
                   .max_stages_per_rank = 2, .schedules = {ScheduleKind::kZeroBubbleV}, .costs_file = file}});
  std::ifstream in(file);
  const auto costs = parse_record<PipelineCosts>(Json::parse(in));
  ASSERT_EQ(costs.stages.size(), 4U);
  for (const StageCosts& stage : costs.stages) {
    EXPECT_GT(stage.forward, 0);
    EXPECT_GT(stage.activation_bytes, 0);
    EXPECT_GT(stage.deferred_bytes, 0);
  }
  EXPECT_GT(costs.link.latency, 0);
}

// Parameters and gradients are float64, the two moments fp32. Flat shards begin each parameter at a multiple of 128
// elements and, in addition, keep gathered parameters and their full gradients.
TEST_F(AutoSchedule, Measures_what_stages_keep_all_the_time) {
  constexpr double kValue = 8, kMoments = 8, kBuffers = 4096;  // rotary tables, statistics
  const fs::path file = folder() / "costs.json";
  for (const double num_shards : {1.0, 2.0}) {
    std::map<std::int64_t, std::pair<double, double>> num_elements;  // by stage: without and with padding
    std::mutex mutex;
    const auto count = [&](const PipelineStageInfo& stage, Module& module) {
      if (stage.num_stages != 4) return;
      const std::lock_guard lock(mutex);
      auto& [numel, padded] = num_elements[stage.current_stage] = {0, 0};
      for (const auto& [name, parameter] : module.named_parameters()) {
        const auto own = static_cast<double>(parameter->global_numel());
        numel += own;
        padded += num_shards == 1 ? own : std::ceil(own / 128) * 128;
      }
    };
    (void)train({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = static_cast<std::int64_t>(num_shards)},
                 .schedule =
                     AutoScheduleConfig{
                         .max_stages_per_rank = 2, .schedules = {ScheduleKind::kZeroBubbleV}, .costs_file = file},
                 .on_stage = count});
    std::ifstream in(file);
    const auto costs = parse_record<PipelineCosts>(Json::parse(in));
    for (std::int64_t stage = 0; stage < 4; ++stage) {
      SCOPED_TRACE(cat("stage ", stage, ", ", num_shards, " shards"));
      const double bytes = costs.stages[static_cast<std::size_t>(stage)].resident_bytes;
      const auto [numel, padded] = num_elements.at(stage);
      const auto kept = [&](double of_shards) {
        return (kValue + kMoments + kValue) * of_shards / num_shards + (num_shards > 1 ? 2 * kValue * padded : 0);
      };
      EXPECT_GE(bytes, kept(numel));
      EXPECT_LE(bytes, kept(padded) + kBuffers);  // the shards of a rank may be the larger ones
    }
  }
}

TEST_F(AutoSchedule, A_bound_that_nothing_fits_is_refused_before_the_first_step) {
  const std::string error = pipeline::error_of(
      {.mesh = {.pipeline_parallel = 2}, .schedule = AutoScheduleConfig{.max_stages_per_rank = 1, .max_bytes = 1}});
  EXPECT_THAT(error, AllOf(HasSubstr("expected a schedule that keeps at most 1 bytes on a rank, got at least"),
                           HasSubstr("in trainer.pipelining.schedule")));
}

TEST_F(AutoSchedule, A_job_that_continues_goes_on_with_what_was_chosen_unless_it_is_asked_otherwise) {
  PipelineJob job{.mesh = {.pipeline_parallel = 2},
                  .schedule = AutoScheduleConfig{.max_stages_per_rank = 2},
                  .num_steps = 2,
                  .save_dir = "saves"};
  EXPECT_THAT(train(job).log, HasSubstr("measured the model"));
  const auto chosen = write_record(saved_schedule());
  job.num_steps = 3;
  job.schedule = AutoScheduleConfig{.max_stages_per_rank = 2, .costs_file = folder() / "costs.json"};
  EXPECT_THAT(train(job).log, AllOf(HasSubstr("which auto chose before"), Not(HasSubstr("measured the model"))));
  EXPECT_EQ(write_record(saved_schedule()), chosen);
  job.num_steps = 4;
  job.schedule = AutoScheduleConfig{.max_stages_per_rank = 1};
  EXPECT_THAT(train(job).log, HasSubstr("measured the model"));
  job.num_steps = 5;
  job.mesh.pipeline_parallel = 4;
  const Trained last = train(job);
  EXPECT_THAT(last.log, HasSubstr("measured the model"));
  EXPECT_TRUE(saved_value("auto_schedule").is_object());
  job.num_steps = 6;
  job.schedule = GPipeScheduleConfig{};
  EXPECT_THAT(train(job).log, Not(HasSubstr("measured the model")));
  EXPECT_TRUE(saved_value("auto_schedule").is_null());
}

// With a bound on memory, only dual_pipe_v fits for eight microbatches, and it cannot run two.
TEST_F(AutoSchedule, A_job_that_continues_measures_anew_where_the_choice_refuses_its_microbatches) {
  AutoScheduleConfig automatic{
      .max_stages_per_rank = 2, .schedules = {ScheduleKind::kDualPipeV}, .costs_file = folder() / "costs.json"};
  PipelineJob job{.mesh = {.pipeline_parallel = 2}, .schedule = automatic, .num_steps = 1};
  (void)train(job);
  std::ifstream in(*automatic.costs_file);
  const auto costs = parse_record<PipelineCosts>(Json::parse(in));
  const auto kept = [&](const PipelineScheduleConfig& schedule) {
    const auto program = build_program(schedule_of(schedule), 2, pipeline::kNumMicrobatches, {.costs = costs});
    const Simulation run = simulate(program, {.costs = costs});
    double most = 0;
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      double bytes = peak_bytes(run, costs, rank);
      for (const StageIndex stage : program.stages.stages_of(rank)) bytes += costs_of(costs, stage).resident_bytes;
      most = std::max(most, bytes);
    }
    return most;
  };
  const double bound = (kept(DualPipeVScheduleConfig{}) + kept(LoopedBfsScheduleConfig{.num_stages_per_rank = 2})) / 2;
  automatic.schedules.push_back(ScheduleKind::kLoopedBfs);
  automatic.max_bytes = static_cast<std::int64_t>(bound);
  job.schedule = automatic;
  job.save_dir = "saves";
  (void)train(job);
  ASSERT_TRUE(std::holds_alternative<DualPipeVScheduleConfig>(saved_schedule()));
  job.mesh.data_parallel_replicate = 4;
  job.num_steps = 2;
  EXPECT_THAT(train(job).log, AllOf(HasSubstr("measures anew: auto chose dual_pipe_v before, which refuses: "),
                                    HasSubstr("measured the model"), Not(HasSubstr("continues with"))));
  EXPECT_TRUE(std::holds_alternative<LoopedBfsScheduleConfig>(saved_schedule()));
}

TEST_F(AutoSchedule, A_job_without_steps_left_measures_nothing) {
  PipelineJob job{.mesh = {.pipeline_parallel = 2}, .num_steps = 1, .save_dir = "saves"};
  (void)train(job);
  job.schedule = AutoScheduleConfig{};
  EXPECT_THAT(train(job).log, Not(HasSubstr("measured the model")));
}

struct Failing final : ModuleHook {
  void before_forward(Module&, const TensorRefs&) override { D9D_CHECK(false, StateError, "a planted fault"); }
  void after_forward(Module&, const TensorRefs&) override {}
};

TEST_F(AutoSchedule, A_stage_that_throws_says_which_it_is_and_that_it_was_being_measured) {
  for (const std::int64_t failing : {0, 1}) {
    const std::string error = pipeline::error_of({.mesh = {.pipeline_parallel = 2},
                                                  .schedule = AutoScheduleConfig{.max_stages_per_rank = 1},
                                                  .on_stage = [&](const PipelineStageInfo& stage, Module& module) {
                                                    if (stage.current_stage != failing) return;
                                                    module.add_hook(std::make_shared<Failing>());
                                                  }});
    EXPECT_THAT(error, AllOf(HasSubstr("a planted fault"), HasSubstr(cat(", stage ", failing)),
                             HasSubstr("while the stages of a cut into 1 a rank were measured")));
  }
}

}  // namespace
}  // namespace d9d::test::auto_schedule_test
