#include "d9d/loop/config/unsupported.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/config/record_json.h"

#include "tests/loop/config/job_config.h"

namespace d9d::unsupported_test {
namespace {

// A configuration that uses only what this version supports.
Json built_trainer() {
  Json trainer = minimal_trainer();
  trainer["checkpointing"]["period_steps"] = "disable";
  return trainer;
}

std::string error_with(const std::string& pointer, const char* value) {
  Json trainer = built_trainer();
  trainer[Json::json_pointer(pointer)] = Json::parse(value);
  const auto config = parse_record<TrainerConfig>(trainer);
  return config_error_of([&] { refuse_unsupported(config); });
}

TEST(RefuseUnbuilt, Lets_a_plain_job_on_one_rank_through) {
  const auto config = parse_record<TrainerConfig>(built_trainer());
  EXPECT_NO_THROW(refuse_unsupported(config));
}

TEST(RefuseUnbuilt, Lets_the_neighbours_of_refused_settings_through) {
  EXPECT_EQ(error_with("/data_prefetch/prefetch_factor", "4"), "accepted");
  EXPECT_EQ(error_with("/logging/max_pending_steps", "1"), "accepted");
  EXPECT_EQ(error_with("/checkpointing", R"({"save_dir": "elsewhere", "period_steps": 10, "num_to_keep": 3})"),
            "accepted");
  EXPECT_EQ(error_with("/gradient_manager/grad_dtype", "\"float32\""), "accepted");
  EXPECT_EQ(error_with("/gradient_manager/grad_dtype", "\"bfloat16\""), "accepted");
  EXPECT_EQ(error_with("/pipelining/schedule", R"({"schedule": "dual_pipe_v"})"), "accepted");
  EXPECT_EQ(error_with("/logging/tracker", R"({"provider": "multi", "trackers": [{"provider": "log"}]})"), "accepted");
}

TEST(RefuseUnbuilt, Names_each_setting_of_the_trainer) {
  EXPECT_EQ(error_with("/gradient_manager/grad_dtype", "\"float16\""),
            "[config] trainer.gradient_manager.grad_dtype = \"float16\": accumulating gradients in this dtype is not "
            "built in this version. Set it to \"float32\", \"bfloat16\" or null.");
  EXPECT_EQ(error_with("/pipelining/schedule", R"({"schedule": "inference"})"),
            "[config] trainer.pipelining.schedule = {\"schedule\":\"inference\"}: training without a backward pass is "
            "not built in this version. Use gpipe.");
}

}  // namespace
}  // namespace d9d::unsupported_test
