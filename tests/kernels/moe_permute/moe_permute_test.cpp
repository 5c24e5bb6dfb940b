#include "d9d/kernels/moe_permute/moe_permute.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/moe_permute/moe_permute_impl.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::moe_permute_test {
namespace {

using ::d9d::testing::backward;
using ::d9d::testing::difference;
using ::d9d::testing::leaf;
using ::d9d::testing::values;
using ::d9d::testing::worst_difference;

// Token t chooses experts t, t + 2, ... of num_experts; every fifth choice is an expert of another rank.
at::Tensor some_ids(std::int64_t num_tokens, std::int64_t experts_a_token, std::int64_t num_experts) {
  const auto slots = at::arange(num_tokens * experts_a_token, at::kLong).view({num_tokens, experts_a_token});
  const auto tokens = at::arange(num_tokens, at::kLong).unsqueeze(1);
  const auto choices = at::arange(experts_a_token, at::kLong);
  return (tokens + choices * 2).remainder(num_experts).masked_fill(slots.remainder(5) == 3, -1);
}

TokenPermutation permutation_of(const at::Tensor& ids, std::int64_t num_experts) {
  return build_token_permutation({.expert_ids = ids, .num_experts = num_experts});
}

std::vector<at::Tensor> permute_by_indexing(const at::Tensor& x, const at::Tensor& probs,
                                            const TokenPermutation& permutation) {
  return {x.index_select(0, permutation.row_to_token), probs.flatten().index_select(0, permutation.row_to_slot)};
}

at::Tensor unpermute_by_indexing(const at::Tensor& y, const at::Tensor& probs, const TokenPermutation& permutation) {
  const auto weights = probs.flatten().index_select(0, permutation.row_to_slot).to(y.scalar_type()).unsqueeze(1);
  return at::zeros({probs.size(0), y.size(1)}, y.options()).index_add(0, permutation.row_to_token, y * weights);
}

struct Case {
  std::int64_t num_tokens, experts_a_token, num_experts, num_features;
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {{6, 2, 5, 4}, {1, 1, 1, 1}, {0, 2, 3, 4}, {200, 3, 16, 33}, {7, 4, 9, 8}};
  return all;
}

TEST(Permute, Equals_indexing_forward_and_backward) {
  for (const auto& size : cases()) {
    const auto permutation =
        permutation_of(some_ids(size.num_tokens, size.experts_a_token, size.num_experts), size.num_experts);
    const auto error = worst_difference(
        [&](const auto& in) {
          const auto rows = permute(in[0], in[1], permutation);
          return std::vector{rows.hidden_states, rows.probs};
        },
        [&](const auto& in) { return permute_by_indexing(in[0], in[1], permutation); },
        {values({size.num_tokens, size.num_features}, 1), values({size.num_tokens, size.experts_a_token}, 2)});
    EXPECT_LT(error, 1e-14) << size.num_tokens;
  }
}

TEST(Unpermute, Equals_a_sum_over_each_tokens_rows_forward_and_backward) {
  for (const auto& size : cases()) {
    const auto permutation =
        permutation_of(some_ids(size.num_tokens, size.experts_a_token, size.num_experts), size.num_experts);
    const auto ones = at::ones({size.num_tokens, size.experts_a_token}, at::kDouble);
    const auto error =
        worst_difference([&](const auto& in) { return std::vector{unpermute(in[0], permutation)}; },
                         [&](const auto& in) { return std::vector{unpermute_by_indexing(in[0], ones, permutation)}; },
                         {values({permutation.row_to_slot.numel(), size.num_features}, 1)});
    EXPECT_LT(error, 1e-14) << size.num_tokens;
  }
}

TEST(Unpermute, Weighs_by_merging_probabilities_forward_and_backward) {
  for (const auto& size : cases()) {
    const auto permutation =
        permutation_of(some_ids(size.num_tokens, size.experts_a_token, size.num_experts), size.num_experts);
    const auto error =
        worst_difference([&](const auto& in) { return std::vector{unpermute(in[0], permutation, in[1])}; },
                         [&](const auto& in) { return std::vector{unpermute_by_indexing(in[0], in[1], permutation)}; },
                         {values({permutation.row_to_slot.numel(), size.num_features}, 1),
                          values({size.num_tokens, size.experts_a_token}, 2)});
    EXPECT_LT(error, 1e-14) << size.num_tokens;
  }
}

TEST(Unpermute, Undoes_permute_when_the_probabilities_add_up_to_one) {
  const auto x = values({50, 7}, 1);
  const auto permutation = permutation_of(some_ids(50, 3, 8).clamp_min(0), 8);
  const auto probs = at::softmax(values({50, 3}, 2), 1);
  EXPECT_LT(difference(unpermute(permute(x, probs, permutation).hidden_states, permutation, probs), x), 1e-14);
}

TEST(Permute, Keeps_the_row_and_the_gradients_of_a_zero_probability) {
  const auto x = leaf(values({2, 3}, 1));
  const auto probs = leaf(at::zeros({2, 1}, at::kDouble));
  const auto rows = permute(x, probs, permutation_of(at::tensor({1, 0}, at::kLong).view({2, 1}), 2));
  EXPECT_TRUE(at::equal(rows.hidden_states, x.flip(0)));
  backward({(rows.hidden_states.sum(1) * rows.probs).sum()}, {at::ones({}, at::kDouble)});
  EXPECT_LT(difference(probs.grad(), x.detach().sum(1, true)), 1e-14);
}

TEST(Permute, Gives_probabilities_their_gradient_when_the_tokens_need_none) {
  const auto probs = leaf(values({2, 1}, 2));
  const auto rows = permute(values({2, 3}, 1), probs, permutation_of(at::tensor({1, 0}, at::kLong).view({2, 1}), 2));
  backward({rows.probs}, {at::tensor({5.0, 7.0}, at::kDouble)});
  EXPECT_TRUE(at::equal(probs.grad(), at::tensor({7.0, 5.0}, at::kDouble).view({2, 1})));
}

TEST(Permute, Passes_gradients_when_one_of_the_outputs_has_none) {
  const auto x = leaf(values({2, 3}, 1));
  const auto probs = leaf(values({2, 1}, 2));
  const auto rows = permute(x, probs, permutation_of(at::tensor({1, 0}, at::kLong).view({2, 1}), 2));
  backward({rows.hidden_states}, {at::ones({2, 3}, at::kDouble)});
  EXPECT_TRUE(at::equal(x.grad(), at::ones({2, 3}, at::kDouble)));
  EXPECT_FALSE(probs.grad().defined());
}

// Terms of 2^-9 are lost if they are added to 1 one by one in bf16, but not in an fp32 sum.
TEST(Unpermute, Sums_bf16_rows_in_fp32) {
  const std::int64_t num_choices = 9;
  const auto ids = at::arange(num_choices, at::kLong).view({1, num_choices});
  auto y = at::full({num_choices, 1}, 1.0 / 512, at::kBFloat16);
  y[0][0] = 1;
  EXPECT_EQ(unpermute(y, permutation_of(ids, num_choices)).item<float>(), at::BFloat16(1 + 8.0 / 512));
}

TEST(CombineRows, Is_the_same_from_both_implementations) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const auto permutation = permutation_of(some_ids(30, 4, 9), 9);
    const auto rows = values({permutation.row_to_slot.numel(), 19}, 1, dtype);
    const auto weights = values({30, 4}, 2, at::kFloat);
    for (const auto& weighing : {at::Tensor(), weights}) {
      EXPECT_LT(difference(detail::combine_rows_cpu(rows, permutation.slot_to_row, weighing),
                           detail::combine_rows_aten(rows, permutation.slot_to_row, weighing)),
                dtype == at::kBFloat16 ? 4e-3 : 1e-6);
    }
  }
}

TEST(CombineRows, Ignores_what_rows_of_other_slots_hold) {
  const auto rows = at::full({1, 2}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  const auto slot_to_row = at::tensor({0, -1}, at::kLong).view({2, 1});
  for (const auto combine : {detail::combine_rows_cpu, detail::combine_rows_aten})
    EXPECT_TRUE(at::equal(combine(rows, slot_to_row, {})[1], at::zeros({2}, at::kDouble)));
}

TEST(Permute, Rejects_shapes_that_do_not_fit) {
  const auto permutation = permutation_of(some_ids(6, 2, 5), 5);
  EXPECT_THROW((void)permute(at::zeros({5, 3}), at::zeros({6, 2}), permutation), ConfigError);
  EXPECT_THROW((void)permute(at::zeros({6, 3}), at::zeros({6, 3}), permutation), ConfigError);
  EXPECT_THROW((void)unpermute(at::zeros({6, 3}), permutation), ConfigError);
  EXPECT_THROW((void)unpermute(at::zeros({permutation.row_to_slot.numel(), 3}), permutation, at::zeros({6, 3})),
               ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::moe_permute_test
