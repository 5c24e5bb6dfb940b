#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/router/expert_counts.h"
#include "d9d/kernels/router/topk_router.h"

#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/op_testing.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

namespace d9d::kernels::topk_router_cuda_test {
namespace {

using ::d9d::testing::backward;
using ::d9d::testing::difference;
using ::d9d::testing::kGpu;
using ::d9d::testing::leaf;
using ::d9d::testing::ramp;
using ::d9d::testing::values;

class TopkRouterCuda : public testing::CudaTest {};
class ExpertCountsCuda : public testing::CudaTest {};

struct Case {
  std::int64_t num_tokens;
  std::int64_t num_experts;
  std::int64_t top_k;
};
const std::vector<Case> kCases = {{0, 4, 2},   {1, 1, 1},    {3, 2, 2},    {31, 31, 4},  {32, 32, 8},   {33, 33, 8},
                                  {65, 64, 8}, {100, 65, 6}, {9, 128, 32}, {77, 256, 8}, {513, 512, 10}};

struct Routed {
  at::Tensor indices;
  at::Tensor probs;
  at::Tensor grad_logits;
};

Routed route(const at::Tensor& logits, const Case& shape, bool renormalize, const std::optional<at::Tensor>& bias) {
  const at::Tensor input = leaf(logits);
  const RoutingResult routing =
      topk_router({.logits = input, .top_k = shape.top_k, .renormalize = renormalize, .expert_bias = bias});
  backward({routing.probs}, {values(routing.probs.sizes(), 5).to(routing.probs.options())});
  return {routing.indices, routing.probs.detach(), input.grad()};
}

// With ties, logits have few distinct values, so that most choices are between equal ones.
at::Tensor logits_of(const Case& shape, bool has_ties, at::ScalarType dtype) {
  const at::Tensor logits = values({shape.num_tokens, shape.num_experts}, 1);
  return (has_ties ? logits.round() : logits).to(dtype);
}

TEST_F(TopkRouterCuda, Equals_the_cpu) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Case& shape : kCases) {
      for (const bool renormalize : {false, true}) {
        for (const bool has_ties : {false, true}) {
          for (const bool has_bias : {false, true}) {
            SCOPED_TRACE(cat(dtype, " ", shape.num_tokens, " x ", shape.num_experts, " top ", shape.top_k));
            std::optional<at::Tensor> bias;
            if (has_bias) bias = values({shape.num_experts}, 2).round().mul_(0.5).to(at::kFloat);
            const at::Tensor logits = logits_of(shape, has_ties, dtype);
            const Routed expected = route(logits, shape, renormalize, bias);
            if (bias) bias = bias->to(kGpu);
            const Routed actual = route(logits.to(kGpu), shape, renormalize, bias);
            EXPECT_TRUE(at::equal(actual.indices.to(at::kCPU), expected.indices));
            EXPECT_EQ(actual.probs.scalar_type(), expected.probs.scalar_type());
            const double exact = dtype == at::kDouble ? 1e-13 : 1e-6;
            EXPECT_LT(difference(actual.probs.to(at::kCPU), expected.probs), exact);
            const double rounded = dtype == at::kBFloat16 ? 8e-3 : dtype == at::kHalf ? 1e-3 : exact;
            EXPECT_LT(difference(actual.grad_logits.to(at::kCPU), expected.grad_logits), rounded);
          }
        }
      }
    }
  }
}

TEST_F(TopkRouterCuda, Is_as_exact_as_aten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Case shape{.num_tokens = 400, .num_experts = 96, .top_k = 8};
    const at::Tensor logits = logits_of(shape, false, dtype).to(kGpu);
    const Routed actual = route(logits, shape, true, std::nullopt);
    const Routed exact = route(logits.to(at::kDouble), shape, true, std::nullopt);
    // The composition, with the same choice of experts.
    const at::Tensor input = leaf(logits);
    const at::Tensor chosen = at::softmax(input, 1, at::kFloat).gather(1, exact.indices);
    const at::Tensor probs = chosen / chosen.sum(1, true);
    backward({probs}, {values(probs.sizes(), 5).to(probs.options())});
    testing::expect_no_worse({{"probs", actual.probs}, {"logits", actual.grad_logits}},
                             {{"probs", probs}, {"logits", input.grad()}},
                             {{"probs", exact.probs}, {"logits", exact.grad_logits}});
  }
}

TEST_F(TopkRouterCuda, Takes_strided_logits_and_is_bit_equal_from_run_to_run) {
  const Case shape{.num_tokens = 300, .num_experts = 64, .top_k = 8};
  const at::Tensor wide = values({64, 600}, 1, at::kFloat).to(kGpu);
  const at::Tensor strided = wide.t().slice(0, 0, 600, 2);
  const Routed first = route(strided, shape, true, std::nullopt);
  const Routed second = route(strided.contiguous(), shape, true, std::nullopt);
  EXPECT_TRUE(at::equal(first.indices, second.indices));
  EXPECT_TRUE(at::equal(first.probs, second.probs));
  EXPECT_TRUE(at::equal(first.grad_logits, second.grad_logits));
}

TEST_F(TopkRouterCuda, Gives_valid_indices_for_nan_and_infinite_logits) {
  at::Tensor logits = values({4, 40}, 1, at::kFloat);
  logits[0].fill_(std::numeric_limits<float>::quiet_NaN());
  logits[1].fill_(-std::numeric_limits<float>::infinity());
  logits[2][7] = std::numeric_limits<float>::infinity();
  const at::Tensor indices = topk_router({.logits = logits.to(kGpu), .top_k = 8}).indices;
  EXPECT_TRUE(indices.ge(0).logical_and(indices.lt(40)).all().item<bool>());
  const at::Tensor sorted = std::get<0>(indices.sort(1));
  EXPECT_TRUE(sorted.diff(1, 1).gt(0).all().item<bool>());  // distinct
}

TEST_F(TopkRouterCuda, Routes_to_more_experts_than_the_kernel_takes) {
  const Case shape{.num_tokens = 20, .num_experts = 600, .top_k = 8};
  const at::Tensor logits = logits_of(shape, true, at::kFloat);
  const Routed expected = route(logits, shape, true, std::nullopt);
  const Routed actual = route(logits.to(kGpu), shape, true, std::nullopt);
  EXPECT_TRUE(at::equal(actual.indices.to(at::kCPU), expected.indices));
  EXPECT_LT(difference(actual.grad_logits.to(at::kCPU), expected.grad_logits), 1e-6);
}

TEST_F(TopkRouterCuda, Routes_more_than_2_31_logits) {
  constexpr std::int64_t kTokens = (std::int64_t{1} << 31) / 64 + 1000;
  if (testing::free_bytes() < (std::int64_t{40} << 30)) GTEST_SKIP() << "needs 40 GiB";
  const at::Tensor row = values({1, 64}, 1, at::kBFloat16).to(kGpu);
  const at::Tensor logits = row.expand({kTokens, 64}).contiguous();
  const RoutingResult routing = topk_router({.logits = logits, .top_k = 2, .renormalize = true});
  const at::Tensor expected = topk_router({.logits = row, .top_k = 2, .renormalize = true}).indices;
  EXPECT_TRUE(routing.indices.eq(expected).all().item<bool>());
}

TEST_F(TopkRouterCuda, Does_not_wait_for_the_device) {
  const at::Tensor logits = leaf(values({100, 64}, 1, at::kFloat).to(kGpu));
  EXPECT_FALSE(test::waits_for_device([&] {
    const RoutingResult routing = topk_router({.logits = logits, .top_k = 8, .renormalize = true});
    backward({routing.probs.sum()}, {at::Tensor()});
  }));
}

TEST_F(ExpertCountsCuda, Equals_the_cpu) {
  for (const std::int64_t num_experts : {1, 33, 64, 512, 3000}) {
    for (const std::int64_t size : {0, 1, 31, 257, 70000}) {
      const at::Tensor ids = values({size}, 1).mul_(1e6).to(at::kLong).remainder(num_experts);
      at::Tensor expected = at::arange(num_experts), actual = expected.to(kGpu);
      add_expert_counts_(expected, ids);
      add_expert_counts_(actual, ids.to(kGpu));
      EXPECT_TRUE(at::equal(actual.to(at::kCPU), expected)) << num_experts << " " << size;
      EXPECT_EQ(expected.sum().item<std::int64_t>(), num_experts * (num_experts - 1) / 2 + size);
    }
  }
}

}  // namespace
}  // namespace d9d::kernels::topk_router_cuda_test
