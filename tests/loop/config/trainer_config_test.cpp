#include "d9d/loop/config/trainer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/config/record_json.h"

#include "tests/loop/config/job_config.h"

namespace d9d::trainer_config_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The trainer with one value changed.
std::string error_with(const std::string& pointer, const Json& value) {
  return config_error_of([&] {
    Json trainer = minimal_trainer();
    trainer[Json::json_pointer(pointer)] = value;
    std::ignore = parse_record<TrainerConfig>(trainer, {.keys = "trainer"});
  });
}

std::string error_without(const std::string& section, const std::string& key) {
  return config_error_of([&] {
    Json trainer = minimal_trainer();
    trainer[section].erase(key);
    std::ignore = parse_record<TrainerConfig>(trainer, {.keys = "trainer"});
  });
}

TEST(TrainerConfig, Minimal_record_has_the_documented_defaults) {
  const auto config = parse_record<TrainerConfig>(minimal_trainer());
  EXPECT_EQ(config.run.description, std::nullopt);
  EXPECT_EQ(config.run.hparams.dump(), "{}");
  EXPECT_EQ(config.schedule.total_steps, std::nullopt);
  EXPECT_EQ(config.data_prefetch.prefetch_factor, 1);
  EXPECT_EQ(config.logging.max_pending_steps, 2);
  EXPECT_EQ(config.logging.norms_by_layer, StepActionPeriod{StepActionMode::kDisable});
  EXPECT_TRUE(std::holds_alternative<GPipeScheduleConfig>(config.pipelining.schedule));
  EXPECT_EQ(config.model_stage_factory.source_checkpoint, std::nullopt);
  EXPECT_FALSE(config.model_stage_factory.checkpoint_only_trainable_parameters);
  EXPECT_EQ(config.checkpointing.num_to_keep, std::nullopt);
  EXPECT_EQ(config.gradient_clipping.max_norm, std::nullopt);
  EXPECT_EQ(config.gradient_clipping.log_total_steps, StepActionPeriod{EverySteps{1}});
  EXPECT_FALSE(config.profiling.has_value());
  EXPECT_EQ(config.gradient_manager.grad_dtype, std::nullopt);
  EXPECT_EQ(config.gradient_manager.bucket_size_mb, 32);
  EXPECT_EQ(config.timeout.init_timeout, 10000);
  EXPECT_EQ(config.timeout.step_timeout, 100);
  EXPECT_FALSE(config.memory_budget.has_value());
  EXPECT_FALSE(config.cuda_graph.has_value());
}

TEST(TrainerConfig, Has_a_budget_of_sizes_or_of_what_is_free) {
  Json trainer = minimal_trainer();
  trainer["memory_budget"] = Json::object();
  const auto automatic = parse_record<TrainerConfig>(trainer);
  ASSERT_TRUE(automatic.memory_budget.has_value());
  EXPECT_EQ(automatic.memory_budget->device, DeviceBudget());
  EXPECT_EQ(automatic.memory_budget->host.bytes, 0);
  EXPECT_EQ(write_record(automatic).at("memory_budget"), Json::parse(R"({"device": "auto", "host": 0})"));
  trainer["memory_budget"] = Json::parse(R"({"device": "120GiB", "host": "64GiB"})");
  const auto sized = parse_record<TrainerConfig>(trainer);
  EXPECT_EQ(sized.memory_budget->device.size, ByteSize{120LL << 30});
  EXPECT_EQ(sized.memory_budget->host.bytes, 64LL << 30);
  EXPECT_EQ(write_record(sized).at("memory_budget"), trainer.at("memory_budget"));
  EXPECT_THAT(error_with("/memory_budget", Json{{"device", "much"}}), HasSubstr("trainer.memory_budget.device"));
}

TEST(TrainerConfig, Turns_graphs_on_with_an_empty_section) {
  Json trainer = minimal_trainer();
  trainer["cuda_graph"] = Json::object();
  const auto config = parse_record<TrainerConfig>(trainer);
  ASSERT_TRUE(config.cuda_graph.has_value());
  EXPECT_EQ(config.cuda_graph->num_warm_up_steps, 2);
  EXPECT_EQ(config.cuda_graph->max_graphs, 4);
}

TEST(TrainerConfig, Every_key_of_the_minimal_record_is_required) {
  const Json trainer = minimal_trainer();
  for (const auto& [section, values] : trainer.items()) {
    for (const auto& [key, value] : values.items()) {
      EXPECT_THAT(error_without(section, key),
                  StartsWith("[config] missing key 'trainer." + section + "." + key + "'"));
    }
  }
}

TEST(TrainerConfig, Names_the_nearest_section) {
  EXPECT_EQ(error_with("/chekpointing", Json::object()),
            "[config] unknown key 'trainer.chekpointing'. Did you mean 'checkpointing'?");
}

TEST(TrainerConfig, Refuses_what_would_fail_later) {
  EXPECT_EQ(error_with("/cuda_graph", Json{{"num_warm_up_steps", 0}}),
            "[config] trainer.cuda_graph.num_warm_up_steps: expected a number >= 1, got 0. Change the value.");
  EXPECT_EQ(error_with("/schedule/total_steps", 0),
            "[config] trainer.schedule.total_steps: expected a number >= 1, got 0. Change the value.");
  EXPECT_EQ(
      error_with("/gc/period_steps", 0),
      "[config] trainer.gc.period_steps: expected a number of steps >= 1, 'last_step' or 'disable', got 0. Change "
      "the value.");
  EXPECT_EQ(error_with("/gradient_manager/grad_dtype", "float23"),
            "[config] trainer.gradient_manager.grad_dtype: expected one of 'float64', 'float32', 'bfloat16', "
            "'float16', got \"float23\". Did you mean 'float32'?");
  EXPECT_THAT(error_with("/logging/max_pending_steps", 0), HasSubstr("expected a number >= 1"));
  EXPECT_THAT(error_with("/data_prefetch/prefetch_factor", -1), HasSubstr("expected a number >= 0"));
  EXPECT_THAT(error_with("/gradient_clipping/max_norm", 0), HasSubstr("expected a number > 0"));
  EXPECT_THAT(error_with("/run/hparams", Json::array()),
              HasSubstr("trainer.run.hparams: expected an object, got array"));
}

TEST(TrainerConfig, Refuses_a_profiling_window_longer_than_its_period) {
  const Json profiling = {{"traces_dir", "t"}, {"period_steps", 5}, {"warmup_steps", 5}, {"active_steps", 1}};
  EXPECT_EQ(error_with("/profiling", profiling),
            "[config] trainer.profiling: expected warmup_steps + active_steps <= period_steps = 5, got 5 + 1. Lengthen "
            "the period.");
}

TEST(TrainerConfig, Lists_the_trackers) {
  EXPECT_EQ(error_with("/logging/tracker/provider", "wandbb"),
            "[config] trainer.logging.tracker.provider: expected one of 'null', 'log', 'jsonl', 'tensorboard', 'aim', "
            "'wandb', 'mlflow', 'custom', 'multi', got \"wandbb\". Did you mean 'wandb'?");
}

TEST(TrainerConfig, Accepts_every_tracker_and_schedule) {
  for (const char* tracker :
       {R"({"provider": "log"})", R"({"provider": "jsonl", "path": "a"})",
        R"({"provider": "tensorboard", "log_dir": "a"})",
        R"({"provider": "aim", "repo": "a", "log_system_params": false, "system_tracking_interval": 5})",
        R"({"provider": "wandb", "project": "a", "tags": ["b"], "mode": "offline", "dir": "c"})",
        R"({"provider": "mlflow", "experiment": "a", "tracking_uri": "sqlite:///a"})",
        R"({"provider": "custom", "name": "csv", "options": {"path": "a"}})",
        R"({"provider": "multi", "trackers": [{"provider": "log"}, {"provider": "jsonl", "path": "a"}]})"}) {
    EXPECT_EQ(error_with("/logging/tracker", Json::parse(tracker)), "accepted") << tracker;
  }
  for (const char* schedule : {R"({"schedule": "inference"})", R"({"schedule": "gpipe"})",
                               R"({"schedule": "looped_bfs", "num_stages_per_rank": 2})",
                               R"({"schedule": "1f1b", "num_stages_per_rank": 1, "zero_bubble": true})",
                               R"({"schedule": "zero_bubble_v"})", R"({"schedule": "dual_pipe_v"})"}) {
    EXPECT_EQ(error_with("/pipelining/schedule", Json::parse(schedule)), "accepted") << schedule;
  }
}

TEST(InferenceConfig, Takes_no_sections_of_training) {
  Json inference = {{"determinism", {{"base_seed", 1}}},
                    {"gc", {{"period_steps", "disable"}}},
                    {"checkpointing", {{"save_dir", "a"}, {"period_steps", "last_step"}}}};
  EXPECT_EQ(parse_record<InferenceConfig>(inference).checkpointing.period_steps,
            StepActionPeriod{StepActionMode::kLastStep});
  inference["run"] = {{"name", "a"}};
  EXPECT_THAT(config_error_of([&] { std::ignore = parse_record<InferenceConfig>(inference); }),
              HasSubstr("unknown key 'run'"));
}

TEST(StepActionPeriod, Reads_steps_and_modes_as_pydantic_reads_an_integer_or_an_enum) {
  for (const auto& [text, expected] : std::map<std::string, std::string>{{"5", "5"},
                                                                         {"5.0", "5"},
                                                                         {"\"5\"", "5"},
                                                                         {"true", "1"},
                                                                         {"\"last_step\"", "\"last_step\""},
                                                                         {"\"disable\"", "\"disable\""}}) {
    EXPECT_EQ(write_record(parse_record<StepActionPeriod>(Json::parse(text))).dump(), expected);
  }
  for (const char* text : {"1.5", "null", "\"Last_step\"", "\"\"", "-5", "[]"}) {
    EXPECT_THROW(std::ignore = parse_record<StepActionPeriod>(Json::parse(text)), ConfigError) << text;
  }
}

}  // namespace
}  // namespace d9d::trainer_config_test
