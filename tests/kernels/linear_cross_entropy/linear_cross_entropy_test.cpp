#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_impl.h"

#include "tests/kernels/linear_cross_entropy/linear_cross_entropy_testing.h"
#include "tests/kernels/op_testing.h"

namespace d9d::kernels::linear_cross_entropy_test {
namespace {

using ::d9d::testing::dense;
using ::d9d::testing::difference;
using ::d9d::testing::kIgnore;
using ::d9d::testing::labels;
using ::d9d::testing::leaf;
using ::d9d::testing::values;
using ::d9d::testing::with_low_rank;

struct Inputs {
  at::Tensor hidden = values({2, 9, 6}, 1);
  std::vector<at::Tensor> weights = {values({20, 6}, 2)};
  at::Tensor targets = labels({2, 9}, 20, 3);
};

double error_against_dense(const Inputs& inputs, const LinearCrossEntropyOptions& options,
                           testing::LinearCrossEntropyOp op = linear_cross_entropy) {
  return testing::error_against_dense(inputs, options, op);
}

TEST(LinearCrossEntropy, Equals_the_golden_value) {
  const at::Tensor hidden = leaf(at::tensor({1.0, 2.0, 3.0}).view({1, 3}));
  const auto output = linear_cross_entropy(hidden, at::eye(3, at::kDouble), at::tensor({1}, at::kLong));
  testing::backward({output.loss}, {at::ones({1}, at::kDouble)});
  EXPECT_LT(difference(output.loss, at::tensor({1.40760596})), 1e-8);
  EXPECT_LT(difference(hidden.grad(), at::tensor({0.09003057, -0.75527153, 0.66524096}).view({1, 3})), 1e-8);
}

TEST(LinearCrossEntropy, Equals_dense_for_every_option) {
  EXPECT_LT(error_against_dense({}, {}), 1e-13);
  EXPECT_LT(error_against_dense({}, {.bias = values({20}, 4)}), 1e-13);
  EXPECT_LT(error_against_dense({.targets = labels({2, 9}, 20, 3).clamp_min(0)}, {.ignore_index = 0}), 1e-13);
  EXPECT_LT(error_against_dense({}, {.softcap = 1.5}), 1e-13);
  EXPECT_LT(error_against_dense({}, {.reduction = Reduction::kMean}), 1e-13);
  EXPECT_LT(error_against_dense({}, {.reduction = Reduction::kSum}), 1e-13);
  EXPECT_LT(error_against_dense({}, {.z_loss_weight = 0.1}), 1e-13);
  EXPECT_LT(error_against_dense({}, {.bias = values({20}, 4), .softcap = 2.0, .z_loss_weight = 0.3}), 1e-13);
}

TEST(LinearCrossEntropy, Equals_dense_for_every_chunk_size) {
  for (const std::int64_t chunk_size : {1, 7, 20, 18 * 20 - 1, 1 << 20})
    EXPECT_LT(error_against_dense({}, {.bias = values({20}, 4), .softcap = 3.0, .chunk_size = chunk_size}), 1e-13)
        << chunk_size;
}

TEST(LinearCrossEntropy, Equals_dense_for_a_vocabulary_in_splits) {
  const Inputs inputs{.weights = {values({11, 6}, 5), values({0, 6}, 6), values({1, 6}, 7), values({8, 6}, 8)}};
  for (const std::int64_t chunk_size : {18 * 4, 1 << 20})
    EXPECT_LT(error_against_dense(inputs, {.bias = values({20}, 4), .chunk_size = chunk_size}), 1e-13);
}

TEST(LinearCrossEntropy, Equals_dense_with_a_term_of_low_rank) {
  const Inputs split{.weights = {values({11, 6}, 5), values({0, 6}, 6), values({1, 6}, 7), values({8, 6}, 8)}};
  for (const Inputs& inputs : {Inputs{}, split}) {
    for (const std::int64_t chunk_size : {7, 18 * 4, 1 << 20}) {
      EXPECT_LT(error_against_dense(inputs, {.chunk_size = chunk_size}, with_low_rank), 1e-13);
      const LinearCrossEntropyOptions all{
          .bias = values({20}, 4), .softcap = 2.0, .z_loss_weight = 0.3, .chunk_size = chunk_size};
      EXPECT_LT(error_against_dense(inputs, all, with_low_rank), 1e-13);
    }
  }
  const Inputs rounded{.hidden = values({64, 32}, 1, at::kBFloat16),
                       .weights = {values({500, 32}, 2, at::kBFloat16)},
                       .targets = labels({64}, 500, 3)};
  EXPECT_LT(error_against_dense(rounded, {.chunk_size = 1 << 12}, with_low_rank), 8e-3);
}

// As the adapter of a frozen head whose vocabulary is in parts.
TEST(LinearCrossEntropy, Trains_a_term_of_low_rank_alone) {
  const at::Tensor hidden = values({64, 32}, 1), targets = labels({64}, 500, 3);
  const std::vector<at::Tensor> weights = {values({300, 32}, 2), values({200, 32}, 5)};
  const LowRankLogits term{.hidden = leaf(values({64, 3}, 6)),
                           .weights = {leaf(values({300, 3}, 7)), leaf(values({200, 3}, 8))}};
  const at::Tensor place = at::ones({300, 3}, at::kDouble);
  {
    const GradientHookHandle hook =
        on_gradient(term.weights[0], {.arrived = [](const at::Tensor& b) { EXPECT_FALSE(b.grad().defined()); },
                                      .place = [&] { return GradientPlace{.tensor = place, .has_values = true}; }});
    linear_cross_entropy(hidden, weights, targets, {.low_rank = term, .chunk_size = 1 << 12}).loss.sum().backward();
  }
  const std::vector<at::Tensor> sums = {leaf(at::cat({hidden, term.hidden}, 1).detach()),
                                        leaf(at::cat({at::cat(weights), at::cat(term.weights)}, 1).detach())};
  dense(sums[0], sums[1], targets, {}).loss.sum().backward();
  const at::Tensor of_b = sums[1].grad().narrow(1, 32, 3);
  EXPECT_LT(difference(place, 1 + of_b.narrow(0, 0, 300)), 1e-12);
  EXPECT_LT(difference(term.weights[1].grad(), of_b.narrow(0, 300, 200)), 1e-12);
  EXPECT_LT(difference(term.hidden.grad(), sums[0].grad().narrow(1, 32, 3)), 1e-12);
}

TEST(LinearCrossEntropy, Equals_dense_for_every_shape) {
  for (const auto& [rows, hidden, vocabulary] :
       std::vector<std::array<std::int64_t, 3>>{{0, 4, 5}, {1, 1, 1}, {3, 5, 2}, {33, 8, 129}, {1500, 3, 17}}) {
    const Inputs inputs{.hidden = values({rows, hidden}, 1),
                        .weights = {values({vocabulary, hidden}, 2)},
                        .targets = labels({rows}, vocabulary, 3)};
    EXPECT_LT(error_against_dense(inputs, {.chunk_size = 4000}), 1e-12) << rows << " " << vocabulary;
  }
}

TEST(LinearCrossEntropy, Equals_dense_for_strided_inputs) {
  const Inputs inputs{.hidden = values({6, 9, 2}, 1).transpose(0, 2),
                      .weights = {values({6, 20}, 2).t()},
                      .targets = labels({9, 2}, 20, 3).t()};
  EXPECT_LT(error_against_dense(inputs, {}), 1e-13);
}

TEST(LinearCrossEntropy, Equals_dense_in_fp32_with_large_logits) {
  const Inputs inputs{.hidden = values({40, 16}, 1, at::kFloat) * 30,
                      .weights = {values({300, 16}, 2, at::kFloat)},
                      .targets = labels({40}, 300, 3)};
  EXPECT_LT(error_against_dense(inputs, {.chunk_size = 40 * 64}), 3e-6);
}

TEST(LinearCrossEntropy, Rounds_bf16_gradients_once) {
  const Inputs inputs{.hidden = values({64, 32}, 1, at::kBFloat16),
                      .weights = {values({500, 32}, 2, at::kBFloat16)},
                      .targets = labels({64}, 500, 3)};
  EXPECT_LT(error_against_dense(inputs, {.chunk_size = 1 << 12}), 8e-3);
  const auto output = linear_cross_entropy(inputs.hidden, inputs.weights, inputs.targets);
  const auto exact = dense(inputs.hidden.to(at::kDouble), inputs.weights[0].to(at::kDouble), inputs.targets, {});
  EXPECT_EQ(output.loss.scalar_type(), at::kFloat);
  EXPECT_LT(difference(output.loss, exact.loss), 1e-6);
}

// As with an fp32 gradient buffer: every backward accumulates, the first into the existing values.
TEST(LinearCrossEntropy, Adds_gradients_of_weights_to_their_places) {
  const Inputs inputs{.hidden = values({64, 32}, 1, at::kBFloat16), .targets = labels({64}, 500, 3)};
  const std::vector<at::Tensor> weights = {leaf(values({300, 32}, 2, at::kBFloat16)), values({1, 32}, 4, at::kBFloat16),
                                           leaf(values({199, 32}, 5, at::kBFloat16))};
  const at::Tensor place = at::ones({300, 32}, at::kFloat);
  const GradientHookHandle hook =
      on_gradient(weights[0], {.arrived = [](const at::Tensor& weight) { EXPECT_FALSE(weight.grad().defined()); },
                               .place = [&] { return GradientPlace{.tensor = place, .has_values = true}; }});
  for (int i = 0; i < 3; ++i)
    linear_cross_entropy(inputs.hidden, weights, inputs.targets, {.chunk_size = 1 << 12}).loss.sum().backward();
  std::vector<at::Tensor> exact;
  for (const at::Tensor& weight : weights) exact.push_back(leaf(weight.detach().to(at::kDouble)));
  dense(inputs.hidden.to(at::kDouble), exact, inputs.targets, {}).loss.sum().backward();
  EXPECT_LT(difference(place, 1 + 3 * exact[0].grad()), 1e-5);
  EXPECT_LT(difference(weights[2].grad(), 3 * exact[2].grad()), 2e-2);  // bf16, rounded after each backward
}

TEST(LinearCrossEntropy, Puts_the_loss_of_a_shift_at_its_target) {
  const at::Tensor hidden = leaf(values({2, 5, 4}, 1));
  const at::Tensor weight = leaf(values({7, 4}, 2));
  const at::Tensor targets = labels({2, 5}, 7, 3);
  const auto output = linear_cross_entropy(hidden, weight, targets, {.shift = 2, .chunk_size = 8});
  testing::backward({output.loss}, {at::ones_like(output.loss)});
  const at::Tensor dense_hidden = leaf(hidden);
  const at::Tensor dense_weight = leaf(weight);
  const auto expected = dense(dense_hidden.narrow(1, 0, 3), dense_weight, targets.narrow(1, 2, 3), {});
  testing::backward({expected.loss}, {at::ones_like(expected.loss)});
  EXPECT_LT(difference(output.loss.narrow(1, 2, 3), expected.loss), 1e-14);
  EXPECT_LT(difference(output.lse.narrow(1, 2, 3), expected.lse), 1e-14);
  EXPECT_TRUE(at::equal(output.loss.narrow(1, 0, 2), at::zeros({2, 2}, at::kDouble)));
  EXPECT_LT(difference(hidden.grad(), dense_hidden.grad()), 1e-14);
  EXPECT_LT(difference(weight.grad(), dense_weight.grad()), 1e-14);
}

TEST(LinearCrossEntropy, Gives_ignored_rows_no_loss_and_no_gradient) {
  const at::Tensor hidden = leaf(values({3, 4}, 1));
  const auto output = linear_cross_entropy(hidden, values({7, 4}, 2), at::tensor({2L, kIgnore, 5L}, at::kLong));
  testing::backward({output.loss, output.lse}, {at::ones({3}, at::kDouble), at::ones({3}, at::kDouble)});
  EXPECT_EQ(output.loss[1].item<double>(), 0);
  EXPECT_EQ(hidden.grad()[1].abs().sum().item<double>(), 0);
  EXPECT_NE(hidden.grad()[2].abs().sum().item<double>(), 0);
}

TEST(LinearCrossEntropy, Is_zero_when_all_rows_are_ignored) {
  for (const Reduction reduction : {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
    const at::Tensor hidden = leaf(values({3, 4}, 1));
    const at::Tensor weight = leaf(values({7, 4}, 2));
    const auto output = linear_cross_entropy(hidden, weight, at::full({3}, kIgnore, at::kLong),
                                             {.reduction = reduction, .z_loss_weight = 1});
    testing::backward({output.loss.sum()}, {at::ones({}, at::kDouble)});
    EXPECT_EQ(output.loss.abs().sum().item<double>(), 0);
    EXPECT_TRUE(at::equal(hidden.grad(), at::zeros_like(hidden)));
    EXPECT_TRUE(at::equal(weight.grad(), at::zeros_like(weight)));
  }
}

TEST(LinearCrossEntropy, Allows_a_bias_that_masks_whole_chunks_of_the_vocabulary) {
  at::Tensor bias = at::zeros({20}, at::kDouble);
  bias.narrow(0, 0, 10).fill_(-std::numeric_limits<double>::infinity());
  Inputs inputs;
  inputs.targets = inputs.targets.remainder(10) + 10;
  EXPECT_LT(error_against_dense(inputs, {.bias = bias, .chunk_size = 18 * 5}), 1e-13);
}

TEST(LinearCrossEntropy, Computes_only_the_gradients_asked_for) {
  const at::Tensor hidden = values({3, 4}, 1);
  const at::Tensor frozen = values({5, 4}, 2);
  const at::Tensor trained = leaf(values({2, 4}, 3));
  const auto output = linear_cross_entropy(hidden, {frozen, trained}, at::tensor({0, 6, 5}, at::kLong));
  testing::backward({output.loss}, {at::ones({3}, at::kDouble)});
  EXPECT_TRUE(trained.grad().defined());
  EXPECT_FALSE(frozen.grad().defined());
}

TEST(LinearCrossEntropy, Names_a_target_outside_the_vocabulary) {
  const auto with_target = [](std::int64_t target) {
    return linear_cross_entropy(values({2, 4}, 1), values({7, 4}, 2), at::tensor({1L, target}, at::kLong));
  };
  EXPECT_THAT([&] { (void)with_target(7); },
              ::testing::ThrowsMessage<ConfigError>(
                  ::testing::AllOf(::testing::HasSubstr("vocabulary of 7"), ::testing::HasSubstr("got 7"))));
  EXPECT_THROW((void)with_target(-1), ConfigError);
  EXPECT_NO_THROW((void)with_target(6));
}

TEST(LinearCrossEntropy, Gives_nan_for_a_target_that_nobody_checked) {
  const auto forward =
      detail::linear_cross_entropy_forward_aten({.products = {{values({2, 4}, 1), {values({7, 4}, 2)}}},
                                                 .targets = at::tensor({7, 1}, at::kLong),
                                                 .chunk_size = 5});
  EXPECT_TRUE(std::isnan(forward.loss[0].item<double>()));
  EXPECT_FALSE(std::isnan(forward.loss[1].item<double>()));
}

TEST(LinearCrossEntropy, Refuses_what_does_not_fit) {
  const at::Tensor hidden = values({2, 4}, 1);
  const at::Tensor weight = values({7, 4}, 2);
  const at::Tensor targets = at::tensor({1, 2}, at::kLong);
  EXPECT_THROW((void)linear_cross_entropy(hidden, values({7, 5}, 2), targets), ConfigError);
  EXPECT_THROW((void)linear_cross_entropy(hidden, values({7, 4}, 2, at::kFloat), targets), ConfigError);
  EXPECT_THROW((void)linear_cross_entropy(hidden, weight, at::tensor({1}, at::kLong)), ConfigError);
  EXPECT_THROW((void)linear_cross_entropy(hidden, weight, targets.to(at::kInt)), ConfigError);
  EXPECT_THROW((void)linear_cross_entropy(hidden, weight, targets, {.bias = values({6}, 3)}), ConfigError);
  EXPECT_THROW((void)linear_cross_entropy(hidden, weight, targets, {.softcap = 0.0}), ConfigError);
  EXPECT_THROW((void)linear_cross_entropy(hidden, weight, targets, {.shift = 2}), ConfigError);
  const auto with_term = [&](at::IntArrayRef u, at::IntArrayRef b, std::size_t num_b = 1) {
    const LowRankLogits term{.hidden = values(u, 3), .weights = std::vector<at::Tensor>(num_b, values(b, 4))};
    return [=] { return linear_cross_entropy(hidden, weight, targets, {.low_rank = term}); };
  };
  const auto refuses = [](const char* text) {
    return ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr(text));
  };
  EXPECT_NO_THROW((void)with_term({2, 3}, {7, 3})());
  EXPECT_THAT(with_term({3, 3}, {7, 3}), refuses("low_rank.hidden [..., S, r]"));
  EXPECT_THAT(with_term({2, 3}, {7, 3}, 2), refuses("got 2"));
  EXPECT_THAT(with_term({2, 3}, {6, 3}), refuses("7 rows"));
  EXPECT_THAT(with_term({2, 3}, {7, 4}), refuses("r = 3"));
}

// Records this thread's allocations through LibTorch.
struct PeakMemory : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    held_bytes += size;
    peak_bytes = std::max(peak_bytes, held_bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t held_bytes = 0;
  std::int64_t peak_bytes = 0;
};

TEST(LinearCrossEntropy, Holds_no_gradient_of_a_frozen_weight_beside_a_term_of_low_rank) {
  constexpr std::int64_t kRows = 64, kHidden = 256, kVocabulary = 8192, kRank = 2;
  const at::Tensor hidden = leaf(values({kRows, kHidden}, 1, at::kFloat));
  const at::Tensor weight = values({kVocabulary, kHidden}, 2, at::kFloat);
  const LowRankLogits term{.hidden = leaf(values({kRows, kRank}, 4, at::kFloat)),
                           .weights = {leaf(values({kVocabulary, kRank}, 5, at::kFloat))}};
  const at::Tensor targets = labels({kRows}, kVocabulary, 3);
  const auto memory = std::make_shared<PeakMemory>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
    linear_cross_entropy(hidden, weight, targets, {.low_rank = term, .chunk_size = 1 << 16}).loss.sum().backward();
  }
  EXPECT_TRUE(term.weights[0].grad().defined());
  EXPECT_GT(memory->peak_bytes, kVocabulary * kRank * 4);
  EXPECT_LT(memory->peak_bytes, kVocabulary * kHidden * 4 / 4);
}

TEST(LinearCrossEntropy, Never_holds_the_logits) {
  constexpr std::int64_t kRows = 1024, kHidden = 16, kVocabulary = 16384;
  const at::Tensor hidden = leaf(values({kRows, kHidden}, 1, at::kFloat));
  const at::Tensor weight = leaf(values({kVocabulary, kHidden}, 2, at::kFloat));
  const at::Tensor targets = labels({kRows}, kVocabulary, 3);
  const auto memory = std::make_shared<PeakMemory>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
    const auto output = linear_cross_entropy(hidden, weight, targets);
    output.loss.sum().backward();
  }
  EXPECT_GT(memory->peak_bytes, kVocabulary * kHidden * 4);  // a lower bound, which shows that the measurement works
  EXPECT_LT(memory->peak_bytes, kRows * kVocabulary * 4 / 8);
}

}  // namespace
}  // namespace d9d::kernels::linear_cross_entropy_test
