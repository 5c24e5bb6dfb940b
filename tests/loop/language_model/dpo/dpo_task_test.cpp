// The loss of preferences on given logits, beside that of Hugging Face trl.
#include "d9d/loop/language_model/dpo/dpo_task.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/ignore_index.h"
#include "d9d/loop/language_model/sequence_log_probs.h"
#include "d9d/metrics/aggregates.h"

#include "tests/support/compare.h"
#include "tests/support/python.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerances.h"

namespace d9d::test::dpo_task_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kVocabulary = 7;
constexpr double kSharesInFloat = 1e-7;  // trl averages them in float32: half an ulp of 1

// Rows whose answers have different lengths.
TokenBatch batch_of(std::int64_t num_pairs) {
  const std::int64_t rows = 2 * num_pairs, length = 6;
  const at::Tensor ids = (at::arange(rows * length).view({rows, length}) * 3 + 1).remainder(kVocabulary);
  at::Tensor labels = (ids * 2 + 1).remainder(kVocabulary);
  for (std::int64_t row = 0; row < rows; ++row) {
    labels[row].narrow(0, 0, 1 + row / 2 % 3).fill_(kIgnoreIndex);  // of the prompt
    labels[row].narrow(0, length - row % 3, row % 3).fill_(kIgnoreIndex);
  }
  return {.input_ids = ids, .labels = labels, .position_ids = at::arange(length).expand({rows, length}).contiguous()};
}

// [B, S, V], differing in all elements.
at::Tensor logits_of(const TokenBatch& batch, double seed) {
  const at::Tensor element = at::arange(batch.input_ids.numel() * kVocabulary, at::kDouble);
  return (element * element * 0.37 + seed).sin().mul(2).view({batch.input_ids.size(0), -1, kVocabulary});
}

DpoTask::Output output_of(const at::Tensor& logits, const TokenBatch& batch) {
  const at::Tensor each = at::cross_entropy_loss(logits.flatten(0, 1), batch.labels.flatten(), {}, at::Reduction::None);
  return {.head = {.cross_entropy = each.view_as(batch.labels)}};
}

json nested(const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    if (tensor.is_floating_point()) return tensor.item<double>();
    return tensor.item<std::int64_t>();
  }
  json list = json::array();
  for (const at::Tensor& each : tensor.detach().unbind(0)) list.push_back(nested(each));
  return list;
}

struct Computed {
  at::Tensor loss, gradient, weight;
  std::map<std::string, double> metrics;
};

void on_one_rank(const std::function<void(const DistContext&)>& body) {
  run_ranks(RankBackend::kThreads, 1,
            [&](World& world) { body(DistContext({.world = borrowed(world), .log_sink = [](std::string_view) {}})); });
}

Computed compute(const TokenBatch& batch, const DpoConfig& config) {
  Computed computed;
  on_one_rank([&](const DistContext& context) {
    DpoTask task(context, config);
    auto inputs = task.build_forward_inputs(batch);
    task.take_reference(output_of(logits_of(batch, 0.1), batch), inputs.state);
    at::Tensor logits = logits_of(batch, 0.7).requires_grad_(true);
    const LossResult result = task.compute_loss(output_of(logits, batch), inputs.state, JobSchedule(1));
    result.loss.backward();
    const MetricMap metrics = task.create_metrics();
    task.update_metrics(inputs.state, metrics);
    computed = {.loss = result.loss.detach(), .gradient = logits.grad(), .weight = *result.loss_weight, .metrics = {}};
    for (const auto& [name, metric] : metrics) {
      computed.metrics[name] = static_cast<const MeanMetric&>(*metric).compute().item<double>();
    }
  });
  return computed;
}

TEST(DpoTask, Equals_trls_formula) {
  const std::vector<double> betas = {0.1, 1.5};
  const TokenBatch batch = batch_of(3);
  const std::string file = ::testing::TempDir() + cat("d9d_dpo_case_", ::getpid(), ".json");
  std::ofstream(file) << json{{"betas", betas},
                              {"logits", nested(logits_of(batch, 0.7))},
                              {"reference", nested(logits_of(batch, 0.1))},
                              {"labels", nested(batch.labels)}};
  const std::string output = run_python("tests/loop/language_model/dpo/dpo_oracle.py", {file});
  std::filesystem::remove(file);
  std::istringstream lines(output.substr(output.find("{\"loss\"")));
  for (const double beta : betas) {
    const Computed computed = compute(batch, {.beta = beta});
    std::string line;
    std::getline(lines, line);
    const json expected = json::parse(line);
    const double limit = tolerance("fp64").value;
    EXPECT_NEAR(computed.loss.item<double>(), expected["loss"].get<double>(), limit);
    std::vector<double> gradient;
    for (const json& row : expected["gradient"]) {
      for (const json& position : row) {
        for (const json& each : position) gradient.push_back(each);
      }
    }
    expect_close("gradient", computed.gradient.flatten(), at::tensor(gradient, at::kDouble), tolerance("fp64"));
    for (const auto& [name, value] : computed.metrics) {
      const double within = name == "rewards/accuracies" ? kSharesInFloat : limit * std::max(1.0, std::abs(value));
      EXPECT_NEAR(value, expected["metrics"].at(name).get<double>(), within) << name;
    }
    EXPECT_EQ(computed.weight.item<std::int64_t>(), 3);
  }
}

TEST(DpoTask, Does_not_count_padding) {
  const TokenBatch batch = batch_of(2);
  TokenBatch padded = batch_of(3);
  padded.labels.narrow(0, 4, 2).fill_(kIgnoreIndex);
  const Computed expected = compute(batch, {}), actual = compute(padded, {});
  EXPECT_EQ(actual.weight.item<std::int64_t>(), 2);
  EXPECT_TRUE(at::allclose(actual.loss, expected.loss, 1e-12, 1e-12));
  EXPECT_TRUE(at::equal(actual.gradient.narrow(0, 4, 2), at::zeros_like(actual.gradient.narrow(0, 4, 2))));
  for (const auto& [name, value] : expected.metrics) EXPECT_NEAR(actual.metrics.at(name), value, 1e-12) << name;
  padded.labels.fill_(kIgnoreIndex);
  const Computed none = compute(padded, {});
  EXPECT_EQ(none.loss.item<double>(), 0);
  EXPECT_EQ(none.weight.item<std::int64_t>(), 0);
}

TEST(DpoTask, Is_log_2_where_the_model_is_its_reference) {
  on_one_rank([](const DistContext& context) {
    const TokenBatch batch = batch_of(2);
    DpoTask task(context);
    auto inputs = task.build_forward_inputs(batch);
    const auto output = output_of(logits_of(batch, 0.1), batch);
    task.take_reference(output, inputs.state);
    const at::NoGradGuard no_grad;
    EXPECT_NEAR(task.compute_loss(output, inputs.state, JobSchedule(1)).loss.item<double>(), std::log(2.0), 1e-15);
  });
}

TEST(DpoTask, Refuses_rows_that_are_no_pairs_and_a_loss_without_reference) {
  on_one_rank([](const DistContext& context) {
    DpoTask task(context);
    TokenBatch odd = batch_of(2);
    odd = {.input_ids = odd.input_ids.narrow(0, 0, 3),
           .labels = odd.labels.narrow(0, 0, 3),
           .position_ids = odd.position_ids.narrow(0, 0, 3)};
    EXPECT_THAT([&] { (void)task.build_forward_inputs(odd); }, ThrowsMessage<ConfigError>(HasSubstr("got 3 rows")));
    TokenBatch packed = batch_of(1);
    packed.packed = PackedSequences{.cu_seqlens = at::tensor({0, 12}, at::kInt), .max_length = 12};
    EXPECT_THAT([&] { (void)task.build_forward_inputs(packed); },
                ThrowsMessage<ConfigError>(HasSubstr("got 2 packed rows")));
    const TokenBatch batch = batch_of(1);
    auto inputs = task.build_forward_inputs(batch);
    EXPECT_THAT([&] { (void)task.compute_loss(output_of(logits_of(batch, 0), batch), inputs.state, JobSchedule(1)); },
                ThrowsMessage<StateError>(HasSubstr("take_reference()")));
  });
}

TEST(SequenceLogProbs, Sum_the_log_probabilities_of_labels) {
  const TokenBatch batch = batch_of(2);
  const at::Tensor logits = logits_of(batch, 0.3), each = output_of(logits, batch).head.cross_entropy;
  const at::Tensor of_labels = logits.log_softmax(-1).gather(-1, batch.labels.clamp_min(0).unsqueeze(-1)).squeeze(-1) *
                               batch.labels.ne(kIgnoreIndex);
  EXPECT_TRUE(at::allclose(token_log_probs(each), of_labels, 1e-12, 1e-12));
  on_one_rank([&](const DistContext& context) {
    const DeviceMesh alone = context.mesh(MeshDomain::kBatch).slice({"cp"});
    EXPECT_TRUE(at::allclose(sequence_log_probs(each, alone), of_labels.sum(1), 1e-12, 1e-12));
  });
}

}  // namespace
}  // namespace d9d::test::dpo_task_test
