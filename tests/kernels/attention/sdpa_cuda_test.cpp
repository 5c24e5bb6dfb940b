// Tests the core that attention selects on a GPU.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "d9d/base/check.h"

#include "tests/kernels/attention/attention_testing.h"

namespace d9d::kernels::sdpa_cuda_test {
namespace {

using attention_testing::Deterministic;
using attention_testing::error_against_eager;
using attention_testing::function_of;
using attention_testing::inputs_of;
using attention_testing::on_gpu;
using ::d9d::testing::outputs_and_gradients;
using ::d9d::testing::same_bits;
using Case = attention_testing::AttentionCase;
using Tensors = std::vector<at::Tensor>;

class SdpaCuda : public ::d9d::testing::CudaTest {};

TEST_F(SdpaCuda, Repeats_itself_under_deterministic_algorithms) {
  const Deterministic deterministic;
  std::vector<Case> cases = {{.name = "full"},
                             {.name = "causal", .options = {.causal = true}},
                             {.name = "window", .options = {.causal = true, .window_left = 300}},
                             {.name = "part", .options = {.causal = true, .first_query = 500}}};
  for (Case& each : cases) each.num_queries = each.num_keys = 2048;
  cases.back().num_queries = 1000;
  cases.push_back({.name = "packed", .options = {.causal = true}, .lengths = {1000, 500, 548}});
  cases.push_back(
      {.name = "sinks", .options = {.causal = true}, .has_sinks = true, .num_queries = 2048, .num_keys = 2048});
  cases.push_back({.name = "softcap", .options = {.causal = true, .softcap = 20.0}});
  for (const Case& each : cases) {
    for (const auto dtype : {at::kBFloat16, at::kFloat}) {
      const auto function = function_of(each, [&](const SdpaInputs& inputs, const SdpaOptions& options) {
        return SdpaOutput{.out = scaled_dot_product_attention(inputs, options), .logsumexp = {}};
      });
      const Tensors inputs = on_gpu(inputs_of(each, dtype));
      const Tensors once = outputs_and_gradients(function, inputs);
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(once, outputs_and_gradients(function, inputs))) << each.name;
    }
  }
}

TEST_F(SdpaCuda, Equals_eager_whatever_core_it_picks) {
  std::vector<Case> cases = {{.name = "full"},
                             {.name = "causal", .options = {.causal = true}},
                             {.name = "window", .options = {.causal = true, .window_left = 40}}};
  for (const std::int64_t length : {0, 1, 2}) {
    cases.push_back(
        {.name = cat("of length ", length), .options = {.causal = true}, .num_queries = length, .num_keys = length});
  }
  cases.push_back({.name = "packed", .options = {.causal = true}, .lengths = {64, 128, 32}});
  cases.push_back({.name = "softcap", .options = {.causal = true, .softcap = 2.0}});
  for (const Case& each : cases) {
    for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
      EXPECT_EQ(error_against_eager(each, dtype,
                                    [](const SdpaInputs& inputs, const SdpaOptions& options) {
                                      return SdpaOutput{.out = scaled_dot_product_attention(inputs, options),
                                                        .logsumexp = {}};
                                    }),
                "")
          << each.name << " " << dtype;
    }
  }
}

TEST_F(SdpaCuda, Gives_zeros_and_zero_gradients_where_a_mask_hides_all) {
  const Case each{.batch = 1, .num_queries = 128, .num_keys = 128};
  const auto keep = at::ones({128, 128}, at::TensorOptions(at::kBool).device(at::kCUDA));
  keep[3].fill_(false);
  keep[100].fill_(false);
  for (const auto& kernels : std::vector<std::vector<TorchSdpaKernel>>{
           {}, {TorchSdpaKernel::kCudnn}, {TorchSdpaKernel::kEfficient}, {TorchSdpaKernel::kMath}}) {
    Tensors leaves;
    for (const auto& input : on_gpu(inputs_of(each, at::kBFloat16))) leaves.push_back(::d9d::testing::leaf(input));
    const auto out =
        torch_attention({.query = leaves[0], .key = leaves[1], .value = leaves[2], .mask = keep}, {}, kernels);
    const int name = kernels.empty() ? -1 : static_cast<int>(kernels[0]);
    EXPECT_EQ(out.select(1, 3).abs().max().item<double>(), 0) << name;
    EXPECT_EQ(out.select(1, 100).abs().max().item<double>(), 0) << name;
    ::d9d::testing::backward({out}, {at::ones_like(out)});
    EXPECT_EQ(leaves[0].grad().select(1, 3).abs().max().item<double>(), 0) << name;
    for (const auto& leaf : leaves) EXPECT_TRUE(leaf.grad().isfinite().all().item<bool>()) << name;
  }
}

TEST_F(SdpaCuda, Refuses_two_to_the_31_elements_with_torch) {
  const bool fits = ::d9d::testing::fits_into_memory([] {
    const at::Tensor query = at::zeros({1, 1 << 19, 32, 128}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
    const at::Tensor key = query.narrow(1, 0, 16);
    EXPECT_THROW((void)torch_attention({.query = query, .key = key, .value = key}, {}), ConfigError);
  });
  if (!fits) GTEST_SKIP() << "the device has too little memory";
}

TEST_F(SdpaCuda, Picks_the_fastest_core_for_the_device) {
  const auto query = at::empty({1, 8, 4, 64}, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
  const auto backend = [&](const SdpaNeeds& needs) {
    return resolve_sdpa({.needs = needs, .device = sdpa_device_of(query)}).backend;
  };
  EXPECT_EQ(backend({}), SdpaBackend::kCudnn);
  EXPECT_EQ(backend({.mask = true}), SdpaBackend::kTorch);
  EXPECT_EQ(backend({.sinks = true}), SdpaBackend::kCudnn);
  EXPECT_EQ(backend({.window = true}), SdpaBackend::kCudnn);
  const Deterministic deterministic;
  EXPECT_EQ(backend({}), SdpaBackend::kFlash);
}

}  // namespace
}  // namespace d9d::kernels::sdpa_cuda_test
