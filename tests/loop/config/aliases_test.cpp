#include "d9d/loop/config/aliases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/config/record_json.h"

#include "tests/loop/config/job_config.h"

namespace d9d::aliases_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const ConfigPath kRoot = {.source = "job.json"};

std::string error_of(Json job) {
  return config_error_of([&] { std::ignore = apply_0_16_aliases(job, kRoot); });
}

TEST(Aliases, Leave_a_file_of_today_alone) {
  Json job = job_0_24();
  EXPECT_THAT(apply_0_16_aliases(job, kRoot), IsEmpty());
  EXPECT_EQ(job, job_0_24());
}

TEST(Aliases, Read_a_file_of_d9d_0_16_with_one_note_each) {
  Json job = job_0_16();
  EXPECT_THAT(apply_0_16_aliases(job, kRoot),
              ElementsAre("trainer.batching is a section of d9d 0.16: its keys are read as keys of data.",
                          "trainer.data_loading is a section of d9d 0.16: its keys are read as keys of data.",
                          "trainer.profiling.enabled is a key of d9d 0.16: the section is off, as if null.",
                          "model_provider.model.model is a key of d9d 0.16: read as model_provider.model.",
                          "model_provider.dtype is no key of d9d 0.16, whose examples train in bfloat16: bfloat16."));
  const auto parsed = parse_job(job);
  EXPECT_EQ(loader_config(parsed.data).global_batch_size, 128);
  EXPECT_EQ(loader_config(parsed.data).num_workers, 4);
  EXPECT_FALSE(parsed.trainer.profiling.has_value());
  EXPECT_EQ(parsed.model_provider.model.layer.num_experts, 128);
  EXPECT_EQ(parsed.model_provider.dtype, Dtype::kBFloat16);
  EXPECT_EQ(parsed.trainer.gradient_clipping.log_total_steps, StepActionPeriod{EverySteps{5}});
}

TEST(Aliases, Keep_a_dtype_that_is_given) {
  Json job = job_0_16();
  job["model_provider"]["dtype"] = "float32";
  std::ignore = apply_0_16_aliases(job, kRoot);
  EXPECT_EQ(parse_job(job).model_provider.dtype, Dtype::kFloat32);
}

TEST(Aliases, Keep_an_enabled_profiling_section) {
  Json job = job_0_16();
  job["trainer"]["profiling"]["enabled"] = true;
  std::ignore = apply_0_16_aliases(job, kRoot);
  EXPECT_EQ(parse_job(job).trainer.profiling->warmup_steps, 5);
}

TEST(Aliases, Serve_inference_too) {
  Json job = {{"inference", {{"batching", {{"global_batch_size", 32}, {"microbatch_size", 8}}}}}};
  EXPECT_THAT(apply_0_16_aliases(job, kRoot), ElementsAre(::testing::StartsWith("inference.batching")));
  EXPECT_EQ(job.dump(), R"({"inference":{},"data":{"global_batch_size":32,"microbatch_size":8}})");
}

TEST(Aliases, Accept_the_same_value_in_both_places) {
  Json job = job_0_16();
  job["data"]["global_batch_size"] = 128.0;
  EXPECT_EQ(error_of(job), "accepted");
}

TEST(Aliases, Refuse_different_values_in_both_places) {
  Json job = job_0_16();
  job["data"]["global_batch_size"] = 64;
  EXPECT_EQ(
      error_of(job),
      "[config] job.json: expected 'trainer.batching.global_batch_size' and 'data.global_batch_size', which are the "
      "same setting, to be equal, got 128 and 64. Remove the first.");
}

TEST(Aliases, Refuse_an_unknown_key_of_an_old_section) {
  Json job = job_0_16();
  job["trainer"]["batching"]["micro_batch_size"] = 8;
  EXPECT_EQ(error_of(job),
            "[config] job.json: unknown key 'trainer.batching.micro_batch_size'. Did you mean 'microbatch_size'?");
}

TEST(Aliases, Turn_the_siblings_of_the_inner_model_into_a_head) {
  Json job = job_0_16();
  job["model_provider"]["model"]["num_labels"] = 3;
  job["model_provider"]["model"]["classifier_dropout"] = 0.1;
  std::ignore = apply_0_16_aliases(job, kRoot);
  EXPECT_EQ(std::get<ClassificationHeadConfig>(parse_job(job).model_provider.head).dropout, 0.1);

  job = job_0_16();
  job["model_provider"]["model"]["embedding_dim"] = nullptr;
  job["model_provider"]["model"]["normalize"] = true;
  std::ignore = apply_0_16_aliases(job, kRoot);
  EXPECT_TRUE(std::get<EmbeddingHeadConfig>(parse_job(job).model_provider.head).normalize);
}

TEST(Aliases, Refuse_a_head_in_both_places) {
  Json job = job_0_16();
  job["model_provider"]["model"]["num_labels"] = 3;
  job["model_provider"]["head"] = {{"kind", "causal_lm"}};
  EXPECT_THAT(error_of(job), ::testing::HasSubstr("which are the same setting"));
}

}  // namespace
}  // namespace d9d::aliases_test
