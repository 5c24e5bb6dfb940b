#include <map>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/blocks/attention/grouped_query_attention.h"

#include "tests/support/device.h"
#include "tests/support/gpu_test.h"
#include "tests/support/tolerances.h"

namespace d9d::grouped_query_attention_cuda_test {
namespace {

class AttentionCuda : public test::GpuTest {};

const at::TensorOptions kOptions = at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(at::kBFloat16);

ModulePtr<GroupedQueryAttention> made(const GroupedQueryAttentionConfig& config) {
  const auto attention = make_module<GroupedQueryAttention>(config);
  attention->to(at::kBFloat16);
  attention->materialize(at::Device(at::kCUDA, 0));
  attention->reset_parameters(/*base_seed=*/1);
  return attention;
}

ModulePtr<GroupedQueryAttention> attention_with(const std::optional<SdpaConfig>& backend) {
  return made({.hidden_size = 256,
               .num_attention_heads = 8,
               .num_key_value_heads = 2,
               .head_dim = 64,
               .has_sinks = true,
               .window_left = 60,
               .sdpa_backend = backend});
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
            2 * test::tolerance("bf16 attention").value * wide.norm().item<double>())  // both results are rounded
      << name;
}

TEST_F(AttentionCuda, With_a_window_and_sinks_equals_eager) {
  const Results actual = run(attention_with(std::nullopt)), expected = run(attention_with(EagerSdpaConfig{}));
  expect_near(actual.output, expected.output, "output");
  expect_near(actual.grad_x, expected.grad_x, "gradient of x");
  expect_near(actual.grad_sinks, expected.grad_sinks, "gradient of the sinks");
}

// Gradients of queries, keys and values, which are parts of one buffer, and optionally of a gate, which is not.
TEST_F(AttentionCuda, With_normed_heads_equals_eager) {
  for (const bool has_output_gate : {false, true}) {
    const auto gradients = [&](const std::optional<SdpaConfig>& backend) {
      const auto attention = made({.hidden_size = 256,
                                   .num_attention_heads = 8,
                                   .num_key_value_heads = 2,
                                   .head_dim = 64,
                                   .qk_norm_eps = 1e-6,
                                   .has_output_gate = has_output_gate,
                                   .sdpa_backend = backend});
      const at::Tensor x = ramp({2, 1000, 256}).requires_grad_();
      const RotaryTables tables{at::ones({2, 1000, 64}, kOptions), at::zeros({2, 1000, 64}, kOptions)};
      (attention(x, tables) * ramp({2, 1000, 256})).sum().backward();
      std::map<std::string, at::Tensor> result = {{"x", x.grad()}};
      for (const auto& [name, parameter] : attention->named_parameters()) result[name] = parameter->local().grad();
      return result;
    };
    const auto actual = gradients(std::nullopt), expected = gradients(EagerSdpaConfig{});
    ASSERT_EQ(actual.size(), expected.size());
    for (const auto& [name, grad] : expected) expect_near(actual.at(name), grad, name.c_str());
  }
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
}  // namespace d9d::grouped_query_attention_cuda_test
