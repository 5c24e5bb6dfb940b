#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/attention/sdpa.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::eager_attention_test {
namespace {

using ::d9d::testing::backward;
using ::d9d::testing::difference;
using ::d9d::testing::leaf;
using ::d9d::testing::values;
using ::d9d::testing::worst_difference;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The definition of attention: repeated key heads, a softmax over keys and sink, no grouping. hidden: broadcastable,
// bool.
at::Tensor definition(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& sinks,
                      const at::Tensor& hidden, double scale) {
  const auto num_groups = q.size(2) / k.size(2);
  const auto keys = k.repeat_interleave(num_groups, 2).transpose(1, 2);
  const auto logits = at::matmul(q.transpose(1, 2), keys.transpose(2, 3)).mul(scale).masked_fill(hidden, -kInfinity);
  const auto sink_column = sinks.view({1, -1, 1, 1}).expand({q.size(0), q.size(2), q.size(1), 1});
  const auto probs = at::softmax(at::cat({logits, sink_column}, -1), -1).narrow(-1, 0, k.size(1));
  return at::matmul(probs, v.repeat_interleave(num_groups, 2).transpose(1, 2)).transpose(1, 2);
}

std::vector<at::Tensor> random_inputs(std::int64_t num_heads, std::int64_t num_kv_heads, std::int64_t num_keys) {
  return {values({2, 7, num_heads, 6}, 1), values({2, num_keys, num_kv_heads, 6}, 2),
          values({2, num_keys, num_kv_heads, 6}, 3), values({num_heads}, 4)};
}

// With equal logits each query gets the mean of the values that it sees.
at::Tensor seen_mean(const SdpaOptions& options, std::int64_t length) {
  const auto zeros = at::zeros({1, length, 1, 1}, at::kDouble);
  const auto value = at::arange(length, at::kDouble).view({1, length, 1, 1});
  return eager_attention({.query = zeros, .key = zeros, .value = value}, options).out.flatten();
}

TEST(EagerAttention, Equals_the_definition_with_sinks_for_all_head_counts) {
  const auto later = at::ones({7, 9}, at::kBool).triu(1);
  for (const std::int64_t num_kv_heads : {1, 2, 4}) {
    const auto error = worst_difference(
        [](const auto& in) {
          const SdpaInputs inputs{.query = in[0], .key = in[1], .value = in[2], .sinks = in[3]};
          return std::vector{eager_attention(inputs, {.causal = true, .scale = 0.3}).out};
        },
        [&](const auto& in) { return std::vector{definition(in[0], in[1], in[2], in[3], later, 0.3)}; },
        random_inputs(4, num_kv_heads, 9));
    EXPECT_LT(error, 1e-14) << num_kv_heads;
  }
}

TEST(EagerAttention, Equals_the_golden_sink_softmax) {
  const auto q = at::tensor({1.0, 0.0, 0.0}, at::kDouble).view({1, 1, 1, 3});
  const auto keys = at::zeros({1, 3, 1, 3}, at::kDouble);
  keys.select(3, 0).copy_(at::tensor({0.2, -0.1, 0.5}, at::kDouble).view({1, 3, 1}));
  const auto out = eager_attention({.query = q,
                                    .key = keys,
                                    .value = at::eye(3, at::kDouble).view({1, 3, 1, 3}),
                                    .sinks = at::tensor({0.3}, at::kDouble)},
                                   {.scale = 1.0})
                       .out;
  EXPECT_LT(difference(out.flatten(), at::tensor({0.23833085, 0.17655983, 0.32171299}, at::kDouble)), 1e-8);
}

TEST(EagerAttention, Sees_itself_and_the_window_around_it) {
  EXPECT_LT(difference(seen_mean({.causal = true}, 4), at::tensor({0.0, 0.5, 1.0, 1.5}, at::kDouble)), 1e-15);
  EXPECT_LT(difference(seen_mean({.causal = true, .window_left = 1}, 4), at::tensor({0.0, 0.5, 1.5, 2.5}, at::kDouble)),
            1e-15);
  EXPECT_LT(
      difference(seen_mean({.window_left = 0, .window_right = 1}, 4), at::tensor({0.5, 1.5, 2.5, 3.0}, at::kDouble)),
      1e-15);
}

TEST(EagerAttention, Reads_a_boolean_mask_as_keep_and_a_floating_one_as_added) {
  const auto in = random_inputs(4, 2, 7);
  const auto keep = values({2, 1, 7, 7}, 5).gt(0).logical_or(at::eye(7, at::kBool));
  const auto added = at::zeros(keep.sizes(), at::kDouble).masked_fill(keep.logical_not(), -kInfinity);
  const auto expected = definition(in[0], in[1], in[2], at::full({4}, -kInfinity, at::kDouble), keep.logical_not(), 1);
  for (const auto& mask : {keep, added}) {
    const auto out = eager_attention({.query = in[0], .key = in[1], .value = in[2], .mask = mask}, {.scale = 1}).out;
    EXPECT_LT(difference(out, expected), 1e-14);
  }
}

TEST(EagerAttention, Gives_zeros_and_zero_gradients_where_a_query_sees_nothing) {
  const auto in = random_inputs(2, 2, 7);
  const auto keep = at::ones({7, 7}, at::kBool);
  keep[3].fill_(false);
  const auto q = leaf(in[0]), k = leaf(in[1]), v = leaf(in[2]);
  const auto out = eager_attention({.query = q, .key = k, .value = v, .mask = keep}, {}).out;
  EXPECT_EQ(out.select(1, 3).abs().max().item<double>(), 0);
  backward({out}, {at::ones_like(out)});
  EXPECT_EQ(q.grad().select(1, 3).abs().max().item<double>(), 0);
  for (const auto& grad : {q.grad(), k.grad(), v.grad()}) EXPECT_TRUE(grad.isfinite().all().item<bool>());
}

TEST(EagerAttention, Computes_bf16_in_fp32) {
  const auto in = random_inputs(4, 2, 7);
  const auto q = in[0].to(at::kBFloat16), k = in[1].to(at::kBFloat16), v = in[2].to(at::kBFloat16);
  const auto out = eager_attention({.query = q, .key = k, .value = v}, {.causal = true}).out;
  const auto q_wide = q.to(at::kFloat), k_wide = k.to(at::kFloat), v_wide = v.to(at::kFloat);
  const auto expected = eager_attention({.query = q_wide, .key = k_wide, .value = v_wide}, {.causal = true}).out;
  EXPECT_TRUE(at::equal(out, expected.to(at::kBFloat16)));
  EXPECT_TRUE(out.is_contiguous());
}

TEST(EagerAttention, Caps_logits_before_it_masks_them) {
  const auto later = at::ones({7, 7}, at::kBool).triu(1);
  const auto expected = [&](const std::vector<at::Tensor>& in) {
    const auto logits = at::matmul(in[0].transpose(1, 2), in[1].permute({0, 2, 3, 1})).mul(0.7);
    const auto capped = (logits / 1.5).tanh().mul(1.5).masked_fill(later, -kInfinity);
    return std::vector{at::matmul(at::softmax(capped, -1), in[2].transpose(1, 2)).transpose(1, 2)};
  };
  const auto actual = [](const std::vector<at::Tensor>& in) {
    const SdpaInputs inputs{.query = in[0], .key = in[1], .value = in[2]};
    return std::vector{eager_attention(inputs, {.causal = true, .scale = 0.7, .softcap = 1.5}).out};
  };
  auto inputs = random_inputs(4, 4, 7);
  inputs.pop_back();
  EXPECT_LT(worst_difference(actual, expected, inputs), 1e-14);
}

TEST(EagerAttention, Returns_the_differentiable_logsumexp_of_keys_and_sink) {
  const auto later = at::ones({7, 9}, at::kBool).triu(1);
  const auto error = worst_difference(
      [](const auto& in) {
        const SdpaInputs inputs{.query = in[0], .key = in[1], .value = in[2], .sinks = in[3]};
        const auto [out, logsumexp] = eager_attention(inputs, {.causal = true, .scale = 0.3});
        return std::vector{out, logsumexp};
      },
      [&](const auto& in) {
        const auto keys = in[1].repeat_interleave(2, 2).permute({0, 2, 3, 1});
        const auto logits = at::matmul(in[0].transpose(1, 2), keys).mul(0.3).masked_fill(later, -kInfinity);
        const auto sink = in[3].view({1, -1, 1, 1}).expand({2, 4, 7, 1});
        return std::vector{definition(in[0], in[1], in[2], in[3], later, 0.3),
                           at::logsumexp(at::cat({logits, sink}, -1), -1)};
      },
      random_inputs(4, 2, 9));
  EXPECT_LT(error, 1e-14);
}

TEST(EagerAttention, Returns_minus_infinity_and_zeros_where_a_query_sees_nothing) {
  const auto in = random_inputs(2, 1, 7);
  const auto [out, logsumexp] =
      eager_attention({.query = in[0], .key = in[1], .value = in[2]}, {.window_left = 1, .first_query = 5});
  EXPECT_TRUE(logsumexp.narrow(-1, 3, 4).eq(-kInfinity).all().item<bool>());
  EXPECT_TRUE(logsumexp.narrow(-1, 0, 3).isfinite().all().item<bool>());
  EXPECT_EQ(out.narrow(1, 3, 4).abs().max().item<double>(), 0);
}

TEST(EagerAttention, Rejects_shapes_that_do_not_fit) {
  const auto q = at::zeros({2, 7, 4, 6}), k = at::zeros({2, 7, 2, 6}), three_heads = at::zeros({2, 7, 3, 6});
  EXPECT_THROW((void)eager_attention({.query = q, .key = k, .value = at::zeros({2, 8, 2, 6})}, {}), ConfigError);
  EXPECT_THROW((void)eager_attention({.query = q, .key = three_heads, .value = three_heads}, {}), ConfigError);
  EXPECT_THROW((void)eager_attention({.query = q, .key = k, .value = k, .sinks = at::zeros({2})}, {}), ConfigError);
  EXPECT_THROW((void)eager_attention({.query = q, .key = k, .value = k, .mask = at::zeros({7, 7}, at::kInt)}, {}),
               ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::eager_attention_test
