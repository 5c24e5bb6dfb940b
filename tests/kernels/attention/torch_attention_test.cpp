#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/kernels/attention/sdpa.h"

#include "tests/kernels/op_testing.h"
#include "tests/support/tolerances.h"

namespace d9d::kernels::torch_attention_test {
namespace {

using ::d9d::testing::backward;
using ::d9d::testing::difference;
using ::d9d::testing::leaf;
using ::d9d::testing::values;
using ::d9d::testing::worst_difference;
using ::testing::HasSubstr;

struct Masking {
  std::string name;
  bool causal;
  std::optional<at::Tensor> mask;
};

std::vector<Masking> maskings(std::int64_t batch, std::int64_t length) {
  const auto keep = values({batch, 1, length, length}, 5).gt(-0.5).logical_or(at::eye(length, at::kBool));
  return {{"nothing", false, std::nullopt},
          {"causal", true, std::nullopt},
          {"boolean mask", false, keep},
          {"boolean mask of two dims", false, keep[0][0]},
          {"boolean mask of a head each", false, keep[0].expand({4, length, length})},
          {"boolean mask of keys", false, values({batch, 1, 1, length}, 7).gt(-1)},
          {"added mask", false, values({length, length}, 6)},
          {"boolean mask and causal", true, keep},
          {"added mask and causal", true, values({batch, 4, length, length}, 6)}};
}

double error_against_eager(const Masking& masking, std::int64_t num_kv_heads,
                           const std::vector<TorchSdpaKernel>& kernels, at::ScalarType dtype) {
  const SdpaOptions options{.causal = masking.causal, .scale = 0.4};
  return worst_difference(
      [&](const auto& in) {
        const SdpaInputs inputs{.query = in[0], .key = in[1], .value = in[2], .mask = masking.mask};
        return std::vector{torch_attention(inputs, options, kernels)};
      },
      [&](const auto& in) {
        const SdpaInputs inputs{.query = in[0], .key = in[1], .value = in[2], .mask = masking.mask};
        return std::vector{eager_attention(inputs, options).out};
      },
      {values({2, 33, 4, 16}, 1, dtype), values({2, 33, num_kv_heads, 16}, 2, dtype),
       values({2, 33, num_kv_heads, 16}, 3, dtype)});
}

struct Kernels {
  std::string name;
  std::vector<TorchSdpaKernel> list;
  friend std::ostream& operator<<(std::ostream& out, const Kernels& kernels) { return out << kernels.name; }
};

class TorchAttention : public ::testing::TestWithParam<Kernels> {};
INSTANTIATE_TEST_SUITE_P(With, TorchAttention,
                         ::testing::Values(Kernels{"any_kernel", {}}, Kernels{"math", {TorchSdpaKernel::kMath}},
                                           Kernels{"flash", {TorchSdpaKernel::kFlash}}),
                         [](const auto& kernels) { return kernels.param.name; });

TEST_P(TorchAttention, Equals_eager_in_fp64_forward_and_backward) {
  for (const auto& masking : maskings(2, 33)) {
    for (const std::int64_t num_kv_heads : {4, 2, 1}) {
      EXPECT_LT(error_against_eager(masking, num_kv_heads, GetParam().list, at::kDouble), test::tolerance("fp64").value)
          << masking.name << ", " << num_kv_heads << " key heads";
    }
  }
}

TEST_P(TorchAttention, Equals_eager_in_fp32_and_bf16) {
  for (const auto& masking : maskings(2, 33)) {
    EXPECT_LT(error_against_eager(masking, 2, GetParam().list, at::kFloat), 1e-4) << masking.name;
    EXPECT_LT(error_against_eager(masking, 2, GetParam().list, at::kBFloat16), 5e-2) << masking.name;
  }
}

TEST_P(TorchAttention, Gives_zeros_and_zero_gradients_where_a_query_sees_nothing) {
  const auto keep = at::ones({7, 7}, at::kBool);
  keep[3].fill_(false);
  const auto q = leaf(values({2, 7, 4, 8}, 1)), k = leaf(values({2, 7, 2, 8}, 2)), v = leaf(values({2, 7, 2, 8}, 3));
  const auto out = torch_attention({.query = q, .key = k, .value = v, .mask = keep}, {}, GetParam().list);
  EXPECT_EQ(out.select(1, 3).abs().max().item<double>(), 0);
  backward({out}, {at::ones_like(out)});
  EXPECT_EQ(q.grad().select(1, 3).abs().max().item<double>(), 0);
  for (const auto& grad : {q.grad(), k.grad(), v.grad()}) EXPECT_TRUE(grad.isfinite().all().item<bool>());
}

// Tests both cores, for queries from position 0, from the middle, and up to the last key.
TEST_P(TorchAttention, Of_a_part_of_the_queries_is_that_part_of_the_whole) {
  for (const bool is_causal : {true, false}) {
    for (const std::int64_t first : {0, 3, 8}) {
      const SdpaOptions whole{.causal = is_causal};
      const SdpaOptions part{.causal = is_causal, .first_query = first};
      const auto run_whole = [&](const auto& in) {
        return std::vector{
            eager_attention({.query = in[0], .key = in[1], .value = in[2]}, whole).out.narrow(1, first, 4)};
      };
      const auto run_part = [&](const auto& in) {
        const auto query = in[0].narrow(1, first, 4);
        return std::vector{torch_attention({.query = query, .key = in[1], .value = in[2]}, part, GetParam().list)};
      };
      const auto run_eager_part = [&](const auto& in) {
        const auto query = in[0].narrow(1, first, 4);
        return std::vector{eager_attention({.query = query, .key = in[1], .value = in[2]}, part).out};
      };
      const std::vector inputs = {values({2, 12, 4, 8}, 1), values({2, 12, 2, 8}, 2), values({2, 12, 2, 8}, 3)};
      EXPECT_LT(worst_difference(run_part, run_whole, inputs), 1e-13) << first;
      EXPECT_LT(worst_difference(run_eager_part, run_whole, inputs), 1e-13) << first;
    }
  }
}

TEST_P(TorchAttention, Returns_a_contiguous_tensor) {
  const auto q = values({2, 7, 4, 8}, 1);
  EXPECT_TRUE(torch_attention({.query = q, .key = q, .value = q}, {.causal = true}, GetParam().list).is_contiguous());
}

TEST(TorchAttentionLists, Take_the_first_kernel_that_can) {
  const auto q = values({1, 5, 2, 8}, 1);
  const SdpaInputs inputs{.query = q, .key = q, .value = q};
  const auto out = torch_attention(inputs, {}, {TorchSdpaKernel::kCudnn, TorchSdpaKernel::kMath});
  EXPECT_LT(difference(out, eager_attention(inputs, {}).out), 1e-14);
}

TEST(TorchAttentionLists, Say_why_no_kernel_can) {
  const auto q = at::zeros({1, 5, 2, 8});
  try {
    (void)torch_attention({.query = q, .key = q, .value = q}, {},
                          {TorchSdpaKernel::kCudnn, TorchSdpaKernel::kEfficient});
    FAIL() << "no kernel of the list runs without a GPU";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("CUDNN_ATTENTION needs a GPU; EFFICIENT_ATTENTION needs a GPU"));
  }
}

TEST(TorchAttentionLists, Refuse_sinks_and_windows) {
  const auto q = at::zeros({1, 5, 2, 8});
  EXPECT_THROW((void)torch_attention({.query = q, .key = q, .value = q, .sinks = at::zeros({2})}, {}), ConfigError);
  EXPECT_THROW((void)torch_attention({.query = q, .key = q, .value = q}, {.window_left = 2}), ConfigError);
  EXPECT_THROW((void)torch_attention({.query = q, .key = q, .value = q}, {.window_right = 2}), ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::torch_attention_test
