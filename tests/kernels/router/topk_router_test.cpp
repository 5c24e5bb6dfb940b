#include "d9d/kernels/router/topk_router.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::topk_router_test {
namespace {

using ::d9d::testing::backward;
using ::d9d::testing::difference;
using ::d9d::testing::leaf;
using ::d9d::testing::values;
using ::d9d::testing::worst_difference;

at::Tensor ids(const std::vector<std::int64_t>& numbers) { return at::tensor(numbers, at::kLong).unsqueeze(0); }

at::Tensor composition(const at::Tensor& logits, std::int64_t top_k, bool renormalize) {
  const auto [probs, indices] = at::softmax(logits, 1).topk(top_k, 1);
  return renormalize ? probs / (probs.sum(1, true) + 1e-20) : probs;
}

TEST(TopkRouter, Equals_the_golden_values) {
  const auto logits = at::tensor({1.0, 2.0, 0.0, -1.0}, at::kFloat).unsqueeze(0);
  const auto plain = topk_router({.logits = logits, .top_k = 2});
  EXPECT_TRUE(at::equal(plain.indices, ids({1, 0})));
  EXPECT_LT(difference(plain.probs, at::tensor({0.64391426, 0.23688282}).unsqueeze(0)), 1e-7);
  const auto renormalized = topk_router({.logits = logits, .top_k = 2, .renormalize = true});
  EXPECT_LT(difference(renormalized.probs, at::tensor({0.73105858, 0.26894142}).unsqueeze(0)), 1e-7);
}

TEST(TopkRouter, Equals_the_composition_forward_and_backward) {
  for (const bool renormalize : {false, true}) {
    for (const std::int64_t top_k : {1, 3, 8}) {
      const auto error = worst_difference(
          [&](const auto& in) {
            return std::vector{topk_router({.logits = in[0], .top_k = top_k, .renormalize = renormalize}).probs};
          },
          [&](const auto& in) { return std::vector{composition(in[0], top_k, renormalize)}; }, {values({37, 8}, 1)});
      EXPECT_LT(error, 1e-13) << top_k;
    }
  }
}

TEST(TopkRouter, Computes_bf16_logits_in_fp32_and_returns_their_gradient_in_bf16) {
  const auto logits = leaf(values({20, 16}, 1, at::kBFloat16));
  const auto wide = leaf(logits.detach().to(at::kFloat));
  const auto routing = topk_router({.logits = logits, .top_k = 4, .renormalize = true});
  const auto expected = topk_router({.logits = wide, .top_k = 4, .renormalize = true});
  EXPECT_TRUE(at::equal(routing.probs, expected.probs));
  const auto grad = values({20, 4}, 2, at::kFloat);
  backward({routing.probs, expected.probs}, {grad, grad});
  EXPECT_TRUE(at::equal(logits.grad(), wide.grad().to(at::kBFloat16)));
}

TEST(TopkRouter, Lets_the_bias_choose_but_not_weigh) {
  const auto logits = at::tensor({1.0, 2.0, 0.0, -1.0}, at::kDouble).unsqueeze(0);
  const auto bias = at::tensor({0.0, 0.0, 0.0, 5.0}, at::kFloat);
  const auto routing = topk_router({.logits = logits, .top_k = 2, .expert_bias = bias});
  EXPECT_TRUE(at::equal(routing.indices, ids({3, 1})));
  EXPECT_LT(difference(routing.probs, at::softmax(logits, 1).index_select(1, at::tensor({3, 1}, at::kLong))), 1e-15);
}

TEST(TopkRouter, Gives_equal_experts_to_the_lower_index) {
  const auto scores = at::tensor({1.0, 3.0, 3.0, 1.0, 3.0, 1.0}, at::kDouble).unsqueeze(0);
  for (const auto select : {detail::select_top_k_cpu, detail::select_top_k_aten})
    EXPECT_TRUE(at::equal(select(scores, 5), ids({1, 2, 4, 0, 3})));
}

// Few distinct scores, hence many ties.
TEST(TopkRouter, Selects_the_same_from_both_implementations) {
  const auto scores = values({100, 17}, 1).round();
  for (const std::int64_t top_k : {1, 2, 9, 17})
    EXPECT_TRUE(at::equal(detail::select_top_k_cpu(scores, top_k), detail::select_top_k_aten(scores, top_k)));
}

TEST(TopkRouter, Selects_distinct_experts_even_from_nan) {
  const auto nan = at::full({1, 4}, std::numeric_limits<float>::quiet_NaN(), at::kFloat);
  EXPECT_TRUE(at::equal(topk_router({.logits = nan, .top_k = 3}).indices, ids({0, 1, 2})));
}

TEST(TopkRouter, Routes_no_tokens) {
  const auto routing = topk_router({.logits = at::empty({0, 4}), .top_k = 2, .renormalize = true});
  EXPECT_EQ(routing.indices.sizes(), (at::IntArrayRef{0, 2}));
  EXPECT_EQ(routing.probs.sizes(), (at::IntArrayRef{0, 2}));
}

TEST(TopkRouter, Rejects_a_top_k_and_a_bias_that_do_not_fit) {
  const auto logits = at::zeros({3, 4});
  EXPECT_THROW((void)topk_router({.logits = logits, .top_k = 5}), ConfigError);
  EXPECT_THROW((void)topk_router({.logits = logits, .top_k = 0}), ConfigError);
  EXPECT_THROW((void)topk_router({.logits = logits, .top_k = 2, .expert_bias = at::zeros({3})}), ConfigError);
  EXPECT_THROW((void)topk_router({.logits = at::zeros({2, 3, 4}), .top_k = 2}), ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::topk_router_test
