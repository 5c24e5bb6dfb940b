// Compares DoRA of projections with Hugging Face peft, in float64: first magnitudes, output, loss and every gradient,
// the output of the merged model, dropout, and adapters that go to peft and come from there.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/io/input_file.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/model_state/convert_model_state.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/peft/export_config.h"
#include "d9d/peft/magnitudes.h"
#include "d9d/peft/merge.h"
#include "d9d/peft/peft_import.h"

#include "tests/oracle/peft_cases.h"
#include "tests/support/compare.h"
#include "tests/support/python.h"

namespace d9d::dora_parity_test {
namespace {
using test::LoadedModel;
using test::OracleCase;
using test::Tensors;
using test::tolerance;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Runs peft. The tests of this binary share one run.
void run_peft() {
  [[maybe_unused]] static const std::string kOutput =
      test::run_python("tests/oracle/dora_oracle.py", test::peft_arguments());
}

class DoraParity : public ::testing::TestWithParam<OracleCase> {
 protected:
  static void SetUpTestSuite() { run_peft(); }
};

PeftConfig config_of(const OracleCase& oracle) {
  return DoraConfig{.module_name_pattern = ".*(self_attn|mlp)\\.[a-z]*_proj",
                    .params = {.r = 4, .alpha = 6.0, .use_rslora = oracle.architecture->name == "qwen2_plain"}};
}

SafetensorsFile expected_of(const OracleCase& oracle) { return SafetensorsFile(oracle.folder() / "dora.safetensors"); }

TEST_P(DoraParity, Of_first_magnitudes_which_change_no_output) {
  const LoadedModel loaded(GetParam(), {}, config_of(GetParam()));
  begin_magnitudes(loaded.module());
  Tensors magnitudes;
  for (const auto& [name, parameter] : loaded.module().named_parameters()) {
    if (name.ends_with("lora_magnitude_vector.weight")) magnitudes.emplace(name, parameter->local().detach());
  }
  test::expect_all_close(magnitudes, test::with_prefix(expected_of(GetParam()), "begin."), tolerance("fp64"));
  test::expect_close("output", loaded.output(), LoadedModel(GetParam()).output(), tolerance("fp64"));
}

void expect_equals_peft(const OracleCase& oracle, const DecoderStageOptions& options) {
  const SafetensorsFile expected = expected_of(oracle);
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
  MergedPeft merged = merge_peft(loaded.module());
  test::expect_close("merged", loaded.output(), expected.tensor("merged"), tolerance("fp64"));
  merged.unmerge();
  test::expect_close("output", loaded.output(), expected.tensor("output"), tolerance("fp64"));
}

TEST_P(DoraParity, Of_output_loss_gradients_and_merged_output) { expect_equals_peft(GetParam(), {}); }

TEST_P(DoraParity, Of_gradients_with_activation_checkpointing) {
  expect_equals_peft(GetParam(), {.checkpointing = true});
}

// The dropout of one step of peft: what it has left of x.
class Kept final : public ModuleHook {
 public:
  explicit Kept(at::Tensor kept) : kept_(std::move(kept)) {}
  void before_forward(Module& /*module*/, const TensorRefs& /*inputs*/) override {}
  void after_forward(Module& /*module*/, const TensorRefs& outputs) override {
    for (at::Tensor& output : outputs) output = kept_;
  }

 private:
  at::Tensor kept_;
};

TEST_P(DoraParity, Of_dropout) {
  const Tensors expected = test::with_prefix(expected_of(GetParam()), "dropout.");
  const auto linear = make_module<Linear>(LinearConfig{.in_features = 6, .out_features = 5, .has_bias = true});
  linear->to(at::kDouble);
  linear->add_adapter({.rank = 4, .scale = 1.5, .dropout = 0.5, .has_magnitude = true});
  linear->materialize(at::kCPU);
  linear->reset_parameters(/*base_seed=*/1);
  linear->weight->copy_from(expected.at("weight"));
  linear->bias->copy_from(expected.at("bias"));
  linear->adapter()->a->weight->copy_from(expected.at("A"));
  linear->adapter()->b->weight->copy_from(expected.at("B"));
  linear->adapter()->magnitude->weight->copy_from(expected.at("magnitude"));
  linear->adapter()->dropout->add_hook(std::make_shared<Kept>(expected.at("kept")));
  test::expect_close("output", linear(expected.at("x")), expected.at("output"), tolerance("fp64"));
}

TEST_P(DoraParity, Of_adapters_that_peft_has_saved) {
  const LoadedModel loaded(GetParam(), {}, config_of(GetParam()));
  const PeftFolder written(GetParam().folder() / "dora");
  const LoadReport report =
      load_model_state(loaded.module(), from_peft(loaded.adapted(), loaded.to_huggingface_mapper(), written),
                       written.tensors(), {.may_be_missing = ".*"});
  EXPECT_TRUE(report.unused.empty()) << report.unused.front();
  test::expect_close("output", loaded.output(), expected_of(GetParam()).tensor("output"), tolerance("fp64"));
}

TEST_P(DoraParity, Of_another_kind_of_adapters_is_refused) {
  DoraConfig dora = std::get<DoraConfig>(config_of(GetParam()));
  const LoadedModel lora(GetParam(), {}, LoraConfig{dora.module_name_pattern, dora.params});
  const PeftFolder written(GetParam().folder() / "dora");
  EXPECT_THAT(
      [&] { (void)from_peft(lora.adapted(), lora.to_huggingface_mapper(), written); },
      ::testing::ThrowsMessage<ConfigError>(HasSubstr("by lora as model_provider.adapters says, got use_dora")));
}

void write_exports(const OracleCase& oracle) {
  const LoadedModel loaded(oracle, {}, config_of(oracle));
  test::copy_adapters(loaded.module(), test::with_prefix(expected_of(oracle), "lora."));
  write_safetensors(oracle.folder() / "ours.safetensors", {tensor_source("output", loaded.output().detach())});
  const ModelExport plain{.mapper = loaded.to_huggingface_mapper(),
                          .files = {{"config.json", text_of_file(oracle.folder() / "config.json")}}};
  for (const auto& [format, name] :
       {std::pair{ExportedAdapters::kMerged, "merged"}, std::pair{ExportedAdapters::kPeft, "adapters"}}) {
    const ModelExport exported = export_of_adapted(format, loaded.adapted(), plain, Dtype::kFloat64, "base");
    convert_model_state(oracle.folder() / "ours" / name, exported.mapper, tensors_of(loaded.module().state_dict()),
                        {.files = exported.files, .only_file = exported.only_file});
    if (format == ExportedAdapters::kPeft) {
      EXPECT_THAT(exported.warnings, ElementsAre(HasSubstr("use_dora")));
    }
  }
}

TEST(DoraReload, Of_exports_gives_our_outputs) {
  run_peft();
  for (const OracleCase& oracle : test::peft_cases()) write_exports(oracle);
  const std::string output =
      test::run_python("tests/oracle/peft_reload.py", test::peft_arguments({cat(tolerance("fp64").value)}));
  for (const OracleCase& oracle : test::peft_cases()) EXPECT_THAT(output, HasSubstr("same " + oracle.folder_name()));
}

INSTANTIATE_TEST_SUITE_P(Wide, DoraParity, ::testing::ValuesIn(test::peft_cases()),
                         [](const auto& each) { return each.param.architecture->name; });

}  // namespace
}  // namespace d9d::dora_parity_test
