// Compares models with Hugging Face transformers: output, loss and every gradient, also in bf16; four AdamW steps; an
// export that is loaded again.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/optim/adamw.h"

#include "tests/oracle/oracle_case.h"
#include "tests/oracle/routing_replay.h"
#include "tests/support/compare.h"
#include "tests/support/compare_rounded.h"
#include "tests/support/python.h"

namespace d9d::transformers_parity_test {
namespace {
using test::LoadedModel;
using test::OracleCase;
using test::Tensors;
using test::tolerance;

std::string name_of(const ::testing::TestParamInfo<OracleCase>& info) {
  const OracleCase& oracle = info.param;
  return cat(oracle.architecture->name, "_", oracle.task->name, "_", enum_name(oracle.dtype));
}

void expect_equals_transformers(const OracleCase& oracle, const DecoderStageOptions& options) {
  const test::Tolerance& limit = tolerance(oracle.dtype == Dtype::kFloat64 ? "fp64" : "fp32");
  const LoadedModel loaded(oracle, options);
  const SafetensorsFile expected = oracle.expected();
  test::expect_close("output", loaded.output(), expected.tensor("output"), limit);
  const at::Tensor loss = loaded.loss();
  test::expect_close("loss", loss, expected.tensor("loss"), limit);
  loss.backward();
  test::expect_all_close(loaded.gradients(), test::with_prefix(expected, "grad."), limit);
}

class TransformersParity : public ::testing::TestWithParam<OracleCase> {};

TEST_P(TransformersParity, Of_output_loss_and_gradients) { expect_equals_transformers(GetParam(), {}); }

TEST_P(TransformersParity, Of_gradients_with_activation_checkpointing) {
  expect_equals_transformers(GetParam(), {.checkpointing = true});
}

INSTANTIATE_TEST_SUITE_P(Wide, TransformersParity,
                         ::testing::ValuesIn(test::cases_in({Dtype::kFloat32, Dtype::kFloat64})), name_of);

class TransformersTraining : public ::testing::TestWithParam<OracleCase> {};

TEST_P(TransformersTraining, Follows_AdamW_of_PyTorch) {
  const OracleCase& oracle = GetParam();
  const bool is_double = oracle.dtype == Dtype::kFloat64;
  const LoadedModel loaded(oracle);
  const SafetensorsFile expected = oracle.expected();
  std::vector<NamedParameter> parameters;
  for (const auto& [name, parameter] : loaded.module().named_parameters()) {
    parameters.push_back({name, parameter->local()});
  }
  AdamW optimizer(parameters, {.lr = 1e-3, .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.1});
  for (int step = 0; step < 4; ++step) {
    for (const NamedParameter& parameter : parameters) parameter.tensor.mutable_grad() = at::Tensor();
    const at::Tensor loss = loaded.loss();
    loss.backward();
    optimizer.step(optimizer.learning_rate());
    const std::string name = cat("loss.", step);
    test::expect_close(name, loss, expected.tensor(name), tolerance(is_double ? "fp64" : "fp32 training loss"));
  }
  if (is_double) {
    test::expect_all_close(loaded.parameters(), test::with_prefix(expected, "param."), tolerance("fp64"));
  }
}

// Optimisers do not depend on heads, so one task suffices.
INSTANTIATE_TEST_SUITE_P(Wide, TransformersTraining,
                         ::testing::ValuesIn(test::cases_in({Dtype::kFloat32, Dtype::kFloat64}, "causal_lm")), name_of);

class TransformersRounding : public ::testing::TestWithParam<OracleCase> {};

// Makes every router replay the choices of transformers.
std::vector<std::shared_ptr<test::RoutingReplay>> replay_routing(Module& model, const SafetensorsFile& expected) {
  std::vector<std::shared_ptr<test::RoutingReplay>> replays;
  model.for_each_module([&](const std::string&, Module& module) {
    if (dynamic_cast<TopKRouter*>(&module) == nullptr) return;
    const at::Tensor indices = expected.tensor(cat("routing.", replays.size()));
    module.add_hook(replays.emplace_back(std::make_shared<test::RoutingReplay>(indices)));
  });
  return replays;
}

TEST_P(TransformersRounding, Is_as_ours) {
  const LoadedModel loaded(GetParam());
  const SafetensorsFile expected = GetParam().expected();
  const SafetensorsFile exact(GetParam().folder() / "exact.safetensors");
  const auto replays = replay_routing(loaded.module(), expected);
  const at::Tensor output = loaded.output(), loss = loaded.loss();
  loss.backward();
  const Tensors gradients = loaded.gradients(), their_gradients = test::with_prefix(expected, "grad.");
  test::expect_close("loss", loss, expected.tensor("loss"), tolerance("bf16 loss"));
  test::expect_same_direction(gradients, their_gradients);
  test::expect_rounding_like(gradients, their_gradients, test::with_prefix(exact, "grad."));
  test::expect_rounding_like({{"output", output}}, {{"output", expected.tensor("output")}},
                             {{"output", exact.tensor("output")}});
  for (const auto& replay : replays) EXPECT_LE(replay->largest_margin(), tolerance("bf16 routing").value);
}

INSTANTIATE_TEST_SUITE_P(BFloat16, TransformersRounding, ::testing::ValuesIn(test::cases_in({Dtype::kBFloat16})),
                         name_of);

TEST(TransformersReload, Of_an_export_gives_identical_weights_and_the_same_outputs) {
  std::vector<OracleCase> cases = test::cases_in({Dtype::kFloat32});
  std::ranges::copy(test::cases_in({Dtype::kFloat64}, "causal_lm"), std::back_inserter(cases));
  for (const OracleCase& oracle : cases) {
    LoadedModel(oracle).export_to(test::oracle_folder() / "exports" / oracle.folder_name());
  }
  const std::string output = test::run_python(
      "tests/oracle/transformers_reload.py",
      {test::oracle_folder().string(), cat(tolerance("fp32 repeated").value), cat(tolerance("fp64 repeated").value)});
  for (const OracleCase& oracle : cases) {
    EXPECT_THAT(output, ::testing::HasSubstr(cat("same ", oracle.folder_name(), "\n")));
  }
}

}  // namespace
}  // namespace d9d::transformers_parity_test
