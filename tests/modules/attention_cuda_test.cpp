#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/modules/blocks/attention/grouped_query_attention.h"

#include "tests/support/device.h"
#include "tests/support/gpu_test.h"
#include "tests/support/tolerances.h"

namespace d9d {
namespace {

class AttentionCuda : public test::GpuTest {};

const at::TensorOptions kOptions = at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(at::kBFloat16);

ModulePtr<GroupedQueryAttention> attention_with(const std::optional<SdpaConfig>& backend) {
  const auto attention = make_module<GroupedQueryAttention>(GroupedQueryAttentionConfig{.hidden_size = 256,
                                                                                        .num_attention_heads = 8,
                                                                                        .num_key_value_heads = 2,
                                                                                        .head_dim = 64,
                                                                                        .has_sinks = true,
                                                                                        .window_left = 60,
                                                                                        .sdpa_backend = backend});
  attention->to(at::kBFloat16);
  attention->materialize(at::Device(at::kCUDA, 0));
  attention->reset_parameters(/*base_seed=*/1);
  return attention;
}

at::Tensor ramp(at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), kOptions.dtype(at::kFloat))
      .mul_(0.37)
      .sin_()
      .mul_(1e3)
      .frac_()
      .to(at::kBFloat16)
      .view(sizes);
}

struct Results {
  at::Tensor output, grad_x, grad_sinks;
};

Results run(const ModulePtr<GroupedQueryAttention>& attention) {
  const at::Tensor x = ramp({2, 1000, 256}).requires_grad_();
  const RotaryTables tables{at::ones({2, 1000, 64}, kOptions), at::zeros({2, 1000, 64}, kOptions)};
  const at::Tensor output = attention(x, tables);
  (output * ramp({2, 1000, 256})).sum().backward();
  return {.output = output.detach(), .grad_x = x.grad(), .grad_sinks = attention->kernel->sinks->local().grad()};
}

void expect_near(const at::Tensor& actual, const at::Tensor& expected, const char* name) {
  const auto wide = expected.to(at::kDouble);
  EXPECT_LE((actual.to(at::kDouble) - wide).norm().item<double>(),
            2 * test::tolerance("bf16 attention").value * wide.norm().item<double>())  // both round
      << name;
}

TEST_F(AttentionCuda, With_a_window_and_sinks_equals_eager) {
  const Results actual = run(attention_with(std::nullopt)), expected = run(attention_with(EagerSdpaConfig{}));
  expect_near(actual.output, expected.output, "output");
  expect_near(actual.grad_x, expected.grad_x, "gradient of x");
  expect_near(actual.grad_sinks, expected.grad_sinks, "gradient of the sinks");
}

TEST_F(AttentionCuda, With_a_window_and_sinks_does_not_keep_the_scores) {
  const auto attention = attention_with(std::nullopt);
  (void)run(attention);
  const auto stats = [] { return at::accelerator::getDeviceStats(0).allocated_bytes[0]; };
  at::accelerator::resetPeakStats(0);
  const std::int64_t before = stats().current;
  (void)run(attention);
  EXPECT_LT(stats().peak - before, 2 * 8 * 1000 * 1000 * 4);  // [B, Hq, S, S] float
}

TEST_F(AttentionCuda, With_a_window_and_sinks_does_not_wait_for_the_device) {
  const auto attention = attention_with(std::nullopt);
  EXPECT_FALSE(test::waits_for_device([&] { (void)run(attention); }));
}

}  // namespace
}  // namespace d9d
