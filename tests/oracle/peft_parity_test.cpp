// Compares LoRA of projections, experts, routers, embedding and head with Hugging Face peft, in float64: output, loss
// and every gradient with adapters, the output of the merged model, and adapters that go to peft and come from there.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/io/input_file.h"
#include "d9d/model_state/convert_model_state.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/peft/export_config.h"
#include "d9d/peft/merge.h"
#include "d9d/peft/peft_import.h"

#include "tests/oracle/peft_cases.h"
#include "tests/support/compare.h"
#include "tests/support/python.h"

namespace d9d::peft_parity_test {
namespace {
using test::LoadedModel;
using test::OracleCase;
using test::Tensors;
using test::tolerance;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Runs peft. The tests of this binary share one run.
void run_peft() {
  [[maybe_unused]] static const std::string kOutput =
      test::run_python("tests/oracle/peft_oracle.py", test::peft_arguments());
}

class PeftParity : public ::testing::TestWithParam<OracleCase> {
 protected:
  static void SetUpTestSuite() { run_peft(); }
};

constexpr const char* kEverything = ".*_proj|.*router\\.gate|.*embed_tokens|head";

PeftConfig config_of(const OracleCase& oracle) {
  return LoraConfig{.module_name_pattern = kEverything,
                    .params = {.r = 4, .alpha = 6.0, .use_rslora = oracle.architecture->name == "qwen2_plain"}};
}

void expect_equals_peft(const OracleCase& oracle, const DecoderStageOptions& options) {
  const SafetensorsFile expected(oracle.folder() / "peft.safetensors");
  const LoadedModel loaded(oracle, options, config_of(oracle));
  test::copy_adapters(loaded.module(), test::with_prefix(expected, "lora."));
  test::expect_close("output", loaded.output(), expected.tensor("output"), tolerance("fp64"));
  const at::Tensor loss = loaded.loss();
  test::expect_close("loss", loss, expected.tensor("loss"), tolerance("fp64"));
  loss.backward();
  Tensors gradients;
  for (const auto& [name, parameter] : loaded.module().named_parameters()) {
    if (parameter->local().grad().defined()) gradients.emplace(name, parameter->local().grad());
  }
  test::expect_all_close(gradients, test::with_prefix(expected, "grad."), tolerance("fp64"));
  if (!expected.entries().contains("merged")) {
    EXPECT_THROW((void)merge_peft(loaded.module()), ConfigError);
    return;
  }
  MergedPeft merged = merge_peft(loaded.module());
  test::expect_close("merged", loaded.output(), expected.tensor("merged"), tolerance("fp64"));
  merged.unmerge();
  test::expect_close("output", loaded.output(), expected.tensor("output"), tolerance("fp64"));
}

TEST_P(PeftParity, Of_output_loss_gradients_and_merged_output) { expect_equals_peft(GetParam(), {}); }

TEST_P(PeftParity, Of_gradients_with_activation_checkpointing) {
  expect_equals_peft(GetParam(), {.checkpointing = true});
}

// Adapters, and perhaps weights beside them, from a folder that peft's save_pretrained() has written.
void expect_read_from(const OracleCase& oracle, const PeftConfig& method, const std::string& folder,
                      const std::string& output) {
  const SafetensorsFile expected(oracle.folder() / "peft.safetensors");
  const LoadedModel loaded(oracle, {}, method);
  const PeftFolder written(oracle.folder() / folder);
  const LoadReport report =
      load_model_state(loaded.module(), from_peft(loaded.adapted(), loaded.to_huggingface_mapper(), written),
                       written.tensors(), {.may_be_missing = ".*"});
  EXPECT_TRUE(report.unused.empty()) << report.unused.front();
  test::expect_close("output", loaded.output(), expected.tensor(output), tolerance("fp64"));
}

TEST_P(PeftParity, Of_adapters_that_peft_has_saved) {
  expect_read_from(GetParam(), config_of(GetParam()), "peft", "output");
}

TEST_P(PeftParity, Of_adapters_and_a_norm_that_peft_has_saved) {
  const StackConfig method{.methods = {LoraConfig{.module_name_pattern = ".*q_proj", .params = {.r = 2, .alpha = 5.0}},
                                       FullTuneConfig{.module_name_pattern = "model\\.norm"}}};
  expect_read_from(GetParam(), method, "peft_with_norm", "with_norm");
}

// Writes exports of the model with adapters, of which experts have rank-stabilised ones too, and its output.
void write_exports(const OracleCase& oracle) {
  const bool is_stabilised = oracle.architecture->name != "qwen3_dense_plain";
  const LoraConfig method{.module_name_pattern = kEverything,
                          .params = {.r = 4, .alpha = 6.0, .use_rslora = is_stabilised}};
  const LoadedModel loaded(oracle, {}, method);
  test::copy_adapters(loaded.module(),
                      test::with_prefix(SafetensorsFile(oracle.folder() / "peft.safetensors"), "lora."));
  write_safetensors(oracle.folder() / "ours.safetensors", {tensor_source("output", loaded.output().detach())});
  auto config = nlohmann::json::parse(text_of_file(oracle.folder() / "config.json"));
  if (!loaded.adapted().untied.empty()) config["tie_word_embeddings"] = false;
  const ModelExport plain{.mapper = loaded.to_huggingface_mapper(), .files = {{"config.json", config.dump()}}};
  for (const auto& [format, name] :
       {std::pair{ExportedAdapters::kMerged, "merged"}, std::pair{ExportedAdapters::kPeft, "adapters"}}) {
    const ModelExport exported = export_of_adapted(format, loaded.adapted(), plain, Dtype::kFloat64, "base");
    convert_model_state(oracle.folder() / "ours" / name, exported.mapper, tensors_of(loaded.module().state_dict()),
                        {.files = exported.files, .only_file = exported.only_file});
    EXPECT_THAT(exported.warnings, Each(AnyOf(HasSubstr("vLLM takes"), HasSubstr("is tied"))));  // peft takes all
  }
}

TEST(PeftReload, Of_exports_gives_our_outputs) {
  run_peft();
  for (const OracleCase& oracle : test::peft_cases()) write_exports(oracle);
  const std::string output =
      test::run_python("tests/oracle/peft_reload.py", test::peft_arguments({cat(tolerance("fp64").value)}));
  for (const OracleCase& oracle : test::peft_cases()) EXPECT_THAT(output, HasSubstr("same " + oracle.folder_name()));
}

INSTANTIATE_TEST_SUITE_P(Wide, PeftParity, ::testing::ValuesIn(test::peft_cases()),
                         [](const auto& each) { return each.param.architecture->name; });

}  // namespace
}  // namespace d9d::peft_parity_test
