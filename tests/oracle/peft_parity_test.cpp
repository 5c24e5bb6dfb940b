// Compares LoRA of projections, experts, embedding and head with Hugging Face peft, in float64: output, loss and every
// gradient with adapters, and the output of the merged model.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/low_rank_adapter.h"
#include "d9d/peft/merge.h"

#include "tests/oracle/oracle_case.h"
#include "tests/support/compare.h"
#include "tests/support/python.h"

namespace d9d::peft_parity_test {
namespace {
using test::LoadedModel;
using test::OracleCase;
using test::Tensors;
using test::tolerance;

// One of each: without biases, with a tied head, with biases and rsLoRA, experts.
std::vector<OracleCase> cases() {
  std::vector<OracleCase> cases;
  for (const OracleCase& oracle : test::cases_in({Dtype::kFloat64}, "causal_lm")) {
    const std::string& name = oracle.architecture->name;
    for (const char* const chosen : {"qwen3_dense_plain", "qwen3_dense_tied", "qwen2_plain", "qwen3_moe_normalized"}) {
      if (name == chosen) cases.push_back(oracle);
    }
  }
  return cases;
}

class PeftParity : public ::testing::TestWithParam<OracleCase> {
 protected:
  static void SetUpTestSuite() {
    const std::vector<OracleCase> all = cases();
    ASSERT_EQ(all.size(), 4);
    test::run_python("tests/oracle/peft_oracle.py", {test::oracle_folder().string(), all[0].folder_name(),
                                                     all[1].folder_name(), all[2].folder_name(), all[3].folder_name()});
  }
};

PeftConfig config_of(const OracleCase& oracle) {
  return LoraConfig{.module_name_pattern = ".*_proj|.*embed_tokens|head",
                    .params = {.r = 4, .alpha = 6.0, .use_rslora = oracle.architecture->name == "qwen2_plain"}};
}

void copy_adapters(const Module& module, const Tensors& values) {
  std::size_t num_copied = 0;
  for (const auto& [name, parameter] : module.named_parameters()) {
    if (!is_adapter_parameter(name)) continue;
    ASSERT_TRUE(values.contains(name)) << name;
    parameter->copy_from(values.at(name));
    ++num_copied;
  }
  ASSERT_EQ(num_copied, values.size());
}

void expect_equals_peft(const OracleCase& oracle, const DecoderStageOptions& options) {
  const SafetensorsFile expected(oracle.folder() / "peft.safetensors");
  const LoadedModel loaded(oracle, options, config_of(oracle));
  copy_adapters(loaded.module(), test::with_prefix(expected, "lora."));
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
  expect_equals_peft(GetParam(), {.enable_checkpointing = true});
}

INSTANTIATE_TEST_SUITE_P(Wide, PeftParity, ::testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.architecture->name; });

}  // namespace
}  // namespace d9d::peft_parity_test
