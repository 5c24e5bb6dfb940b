#include "d9d/loop/checkpoint/export_model.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/communicator/thread/thread_job.h"

namespace d9d::test::export_model_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Otherwise the job would find its own files there after training, and could not export.
TEST(PrepareExport, Refuses_a_folder_into_which_the_job_writes_something_else) {
  const fs::path folder = fs::path(::testing::TempDir()) / "d9d_export_place";
  const auto refusal = [&](const TrainerConfig& config) -> std::string {
    fs::remove_all(folder);
    try {
      (void)prepare_export(DistContext({.world = one_rank_world()}), folder / "export", {}, config);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  const auto tracked = [](const TrackerConfig& tracker) {
    TrainerConfig config;
    config.logging.tracker = tracker;
    return config;
  };
  const auto saved = [](const fs::path& place) {
    TrainerConfig config;
    config.checkpointing = {.save_dir = place, .period_steps = {EverySteps{1}}};
    return config;
  };
  EXPECT_THAT(refusal(tracked(JsonlTrackerConfig{.path = folder / "export" / "metrics.jsonl"})),
              AllOf(HasSubstr("trainer.logging.tracker.path"), HasSubstr("Export to another folder.")));
  EXPECT_THAT(refusal(tracked(TensorboardTrackerConfig{.log_dir = folder / "x" / ".." / "export"})),
              HasSubstr("trainer.logging.tracker.log_dir"));
  EXPECT_THAT(refusal(tracked(MultiTrackerConfig{
                  .trackers = {NullTrackerConfig{}, JsonlTrackerConfig{.path = folder / "export" / "m"}}})),
              HasSubstr("trainer.logging.tracker.trackers[1].path"));
  EXPECT_THAT(refusal(saved(folder / "export" / "saves")), HasSubstr("trainer.checkpointing.save_dir"));
  TrainerConfig exporting;
  exporting.exports = {.folder = folder / "export" / "steps", .period_steps = {EverySteps{1}}};
  EXPECT_THAT(refusal(exporting), HasSubstr("trainer.exports.folder"));
  // The weights that the job begins with: an export would replace them, and a resumed job begin with others.
  TrainerConfig begins;
  begins.model_stage_factory.source_checkpoint = folder / "." / "export";
  EXPECT_THAT(refusal(begins), AllOf(HasSubstr("trainer.model_stage_factory.source_checkpoint"), HasSubstr("lies")));
  begins.model_stage_factory.source_checkpoint = folder / "exported";
  begins.model_stage_factory.source_adapters = folder / "export" / "adapters";
  EXPECT_THAT(refusal(begins), HasSubstr("trainer.model_stage_factory.source_adapters"));
  begins.model_stage_factory.source_adapters = folder / "export2";
  EXPECT_EQ(refusal(begins), "");
  EXPECT_EQ(refusal(saved(folder / "exported")), "");
  EXPECT_EQ(refusal(tracked(JsonlTrackerConfig{.path = folder / "metrics.jsonl"})), "");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace d9d::test::export_model_test
