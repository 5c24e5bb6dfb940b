// Layouts in the precisions in which models are trained.
#include <algorithm>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/layout/layout_case.h"
#include "tests/support/compare.h"
#include "tests/support/decoder_families.h"

namespace d9d::test::precision_test {
namespace {

const Layout kHybrid = {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2}};
const Layout kExperts = {.mesh = {.data_parallel_shard = 4, .expert_parallel = 2}};

TEST(Float32Layouts, Have_the_losses_and_gradients_of_one_rank) {
  for (const DecoderFamily& family : decoder_families()) {
    SCOPED_TRACE(family.name);
    const LayoutJob job{.family = family.name, .dtype = at::kFloat, .num_microbatches = 16, .num_steps = 1};
    const LayoutResult expected = train({}, job);
    const LayoutResult actual = train(family.has_experts ? kExperts : kHybrid, job);
    EXPECT_NEAR(actual.losses[0], expected.losses[0], tolerance("fp32").value * expected.losses[0]);
    EXPECT_NEAR(actual.norms[0], expected.norms[0], tolerance("fp32").value * expected.norms[0]);
    expect_all_close(actual.gradients, expected.gradients, tolerance("fp32"));
  }
}

double rms(const at::Tensor& tensor) { return tensor.to(at::kDouble).square().mean().sqrt().item<double>(); }

// The error of the first step's gradients relative to the same job in float64, relative to each tensor's size.
double gradient_error(const LayoutResult& result, const LayoutResult& exact) {
  double sum = 0;
  for (const auto& [name, grad] : exact.gradients) {
    sum += rms(result.gradients.at(name).to(at::kDouble) - grad) / std::max(rms(grad), 1e-3);
  }
  return sum / static_cast<double>(exact.gradients.size());
}

TEST(Bfloat16Layouts, Are_as_far_from_float64_as_one_rank_is) {
  LayoutJob job{.num_microbatches = 16, .num_steps = 1};
  const LayoutResult exact = train({}, job);
  job.dtype = at::kBFloat16;
  const LayoutResult one_rank = train({}, job);
  const LayoutResult hybrid = train(kHybrid, job);
  const double limit = tolerance("bf16 layout").value;
  EXPECT_LE(gradient_error(hybrid, exact), limit * gradient_error(one_rank, exact));
  EXPECT_LE(std::abs(hybrid.losses[0] - exact.losses[0]), limit * std::abs(one_rank.losses[0] - exact.losses[0]));
  EXPECT_EQ(hybrid.gradients.begin()->second.scalar_type(), at::kFloat);  // reduced in float32
}

// Norms in float32 in a model of float64: each unit has two flat groups.
TEST(MixedLayouts, Train_as_one_rank_does) {
  const LayoutJob job{.is_mixed = true};
  expect_same(train(kHybrid, job), train({}, job), tolerance("fp32"));
}

}  // namespace
}  // namespace d9d::test::precision_test
