#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "d9d/kernels/attention/fused_kernels.h"

#include "tests/kernels/op_testing.h"

namespace d9d::kernels::attention_sinks_test {
namespace {

using ::d9d::testing::difference;
using ::d9d::testing::leaf;
using ::d9d::testing::values;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Inputs {
  at::Tensor query = values({2, 7, 4, 8}, 1, at::kFloat), key = values({2, 9, 2, 8}, 2, at::kFloat),
             value = values({2, 9, 2, 8}, 3, at::kFloat), sinks = values({4}, 4, at::kFloat);
};

SdpaOutput eager(const Inputs& inputs, std::optional<at::Tensor> sinks) {
  return eager_attention({.query = inputs.query, .key = inputs.key, .value = inputs.value, .sinks = std::move(sinks)},
                         {});
}

TEST(AttentionSinks, Added_to_a_kernels_result_are_sinks_in_its_softmax) {
  const Inputs inputs;
  const auto without = eager(inputs, std::nullopt);
  detail::FusedForward forward{.out = without.out.clone(), .logsumexp = without.logsumexp};
  detail::add_sinks(forward, inputs.sinks);
  const auto expected = eager(inputs, inputs.sinks);
  EXPECT_LT(difference(forward.out, expected.out), 1e-6);
  EXPECT_LT(difference(forward.logsumexp, expected.logsumexp), 1e-6);
}

TEST(AttentionSinks, Take_all_where_a_query_sees_nothing_whatever_the_kernel_says) {
  for (const double nothing : {kInfinity, -kInfinity}) {
    detail::FusedForward forward{.out = at::zeros({1, 3, 2, 8}), .logsumexp = at::full({1, 2, 3}, nothing)};
    detail::add_sinks(forward, at::tensor({0.5F, -2.0F}));
    EXPECT_EQ(forward.out.abs().max().item<float>(), 0);
    EXPECT_TRUE(at::equal(forward.logsumexp, at::tensor({0.5F, -2.0F}).view({1, 2, 1}).expand({1, 2, 3})));
  }
}

TEST(AttentionSinks, Have_the_gradient_of_autograd) {
  const Inputs inputs;
  const auto sinks = leaf(inputs.sinks);
  const auto [out, logsumexp] = eager(inputs, sinks);
  const auto grad_out = values(out.sizes(), 5, at::kFloat), grad_logsumexp = values(logsumexp.sizes(), 6, at::kFloat);
  const detail::FusedForward forward{.out = out.detach(), .logsumexp = logsumexp.detach()};
  testing::backward({out}, {grad_out});
  EXPECT_LT(difference(detail::sink_gradient(grad_out, {}, forward, inputs.sinks), sinks.grad()), 1e-6);
  const auto both = leaf(inputs.sinks);
  const auto again = eager(inputs, both);
  testing::backward({again.out, again.logsumexp}, {grad_out, grad_logsumexp});
  EXPECT_LT(difference(detail::sink_gradient(grad_out, grad_logsumexp, forward, inputs.sinks), both.grad()), 1e-6);
}

}  // namespace
}  // namespace d9d::kernels::attention_sinks_test
