// Attention in parts, with eager attention in fp64 as the kernel and limits that small tensors exceed.
#include "d9d/kernels/attention/attention_parts.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "d9d/base/check.h"

#include "tests/kernels/attention/attention_testing.h"
#include "tests/support/tolerances.h"

namespace d9d::kernels::attention_parts_test {
namespace {

using attention_testing::AttentionCase;
using attention_testing::inputs_of;
using attention_testing::packed_of;
using ::d9d::testing::values;
using detail::attention_parts;
using detail::AttentionPart;
using detail::AttentionSizes;
using detail::FusedForward;
using detail::FusedGradients;
using detail::FusedTensors;
using ::testing::ElementsAre;

constexpr AttentionSizes k8B{
    .batch = 1, .num_queries = 1 << 19, .num_keys = 1 << 19, .num_heads = 32, .num_kv_heads = 8, .num_features = 128};

TEST(AttentionParts, Are_the_whole_below_the_limit) {
  AttentionSizes sizes = k8B;
  sizes.num_queries = sizes.num_keys = (1 << 19) - 128;
  EXPECT_THAT(attention_parts(sizes, detail::kMaxElements), ElementsAre(AttentionPart{0, 1, 0, 8}));
  sizes.is_backward = true;
  EXPECT_THAT(attention_parts(sizes, detail::kMaxElements), ElementsAre(AttentionPart{0, 1, 0, 8}));
}

TEST(AttentionParts, Have_an_equal_share_of_heads) {
  EXPECT_THAT(attention_parts(k8B, detail::kMaxElements),
              ElementsAre(AttentionPart{0, 1, 0, 4}, AttentionPart{0, 1, 4, 4}));
}

TEST(AttentionParts, Have_whole_sequences_where_these_fit) {
  AttentionSizes sizes = k8B;
  sizes.batch = 4;
  sizes.num_queries = sizes.num_keys = 1 << 17;
  EXPECT_THAT(attention_parts(sizes, detail::kMaxElements),
              ElementsAre(AttentionPart{0, 2, 0, 8}, AttentionPart{2, 2, 0, 8}));
}

// Gradients of keys are made for each head of queries, of which the forward pass only reads its 2^30 elements.
TEST(AttentionParts, Of_a_backward_pass_count_keys_for_each_head_of_queries) {
  AttentionSizes sizes = k8B;
  sizes.num_queries = 1 << 18;
  sizes.num_keys = 1 << 20;
  EXPECT_EQ(attention_parts(sizes, detail::kMaxElements).size(), 1);
  sizes.is_backward = true;
  EXPECT_EQ(attention_parts(sizes, detail::kMaxElements).size(), 3);  // of 3, 3 and 2 heads
}

TEST(AttentionParts, Of_a_backward_pass_count_the_tiles_of_packed_sequences) {
  AttentionSizes sizes = k8B;
  sizes.num_queries = sizes.num_keys = 1 << 18;
  sizes.is_backward = true;
  EXPECT_EQ(attention_parts(sizes, detail::kMaxElements).size(), 1);
  sizes.num_packed = (1 << 18) / 128;
  EXPECT_EQ(attention_parts(sizes, detail::kMaxElements).size(), 2);
}

TEST(AttentionParts, Refuse_a_head_that_is_too_large) {
  AttentionSizes sizes = k8B;
  sizes.num_kv_heads = 1;
  EXPECT_THROW((void)attention_parts(sizes, detail::kMaxElements), ConfigError);
}

// The tensors of a case in fp64, and eager attention as a fused kernel.
struct Fake {
  explicit Fake(const AttentionCase& of) : each(of) {
    for (const at::Tensor& input : inputs_of(each, at::kDouble)) inputs.push_back(input.to(at::kDouble));
    tensors = {.query = inputs[0], .key = inputs[1], .value = inputs[2]};
    if (each.has_sinks) sinks = inputs[3];
    if (const auto packed = packed_of(each.lengths, at::kCPU)) tensors.cu_seqlens = packed->cu_seqlens;
  }

  [[nodiscard]] FusedForward forward(const FusedTensors& part, const at::Tensor& sinks_of_part) const {
    num_elements = std::max(num_elements, part.query.numel());
    const SdpaOutput result =
        eager_attention({.query = part.query,
                         .key = part.key,
                         .value = part.value,
                         .sinks = sinks_of_part.defined() ? std::optional(sinks_of_part) : std::nullopt,
                         .packed = packed_of(each.lengths, at::kCPU)},
                        each.options);
    return {.out = result.out, .logsumexp = result.logsumexp};
  }
  // Without the sinks, which the results of a forward pass include.
  [[nodiscard]] FusedGradients backward(const FusedTensors& part, const detail::BackwardInputs& given) const {
    const at::AutoGradMode records(true);
    const auto leaf = [](const at::Tensor& x) { return x.detach().requires_grad_(); };
    const FusedTensors leaves{.query = leaf(part.query), .key = leaf(part.key), .value = leaf(part.value)};
    const FusedForward result = forward(leaves, {});
    EXPECT_TRUE(at::allclose(result.out, given.forward.out) && at::allclose(result.logsumexp, given.forward.logsumexp));
    std::vector<at::Tensor> outputs = {result.out}, grads = {given.grad_out};
    if (given.grad_logsumexp.defined()) {
      outputs.push_back(result.logsumexp);
      grads.push_back(given.grad_logsumexp);
    }
    const auto found = torch::autograd::grad(outputs, {leaves.query, leaves.key, leaves.value}, grads);
    return {.query = found[0], .key = found[1], .value = found[2]};
  }

  AttentionCase each;
  std::vector<at::Tensor> inputs;
  FusedTensors tensors;
  at::Tensor sinks;
  mutable std::int64_t num_elements = 0;  // of the largest query of a part
};

std::vector<AttentionCase> cases() {
  const AttentionCase dense{.name = "dense",
                            .options = {.causal = true},
                            .num_heads = 6,
                            .num_kv_heads = 3,
                            .num_features = 64,
                            .batch = 3,
                            .num_queries = 9,
                            .num_keys = 9};
  AttentionCase sinks = dense, packed = dense;
  sinks.has_sinks = true;
  packed.lengths = {4, 7, 1};
  return {dense, sinks, packed};
}

// Elements of the queries that read a head of keys, in one sequence or in the pack.
std::int64_t elements_of_kv_head(const AttentionCase& each, bool is_backward) {
  constexpr std::int64_t kTile = 128;
  const std::int64_t in_tiles = each.lengths.empty() ? kTile : kTile + std::ssize(each.lengths) * kTile;
  const std::int64_t num_positions = each.lengths.empty() ? 9 : 12;
  return (is_backward ? in_tiles : num_positions) * 2 * 64;
}

void expect_near(const at::Tensor& actual, const at::Tensor& expected, const std::string& name) {
  const test::Tolerance allowed = test::tolerance("fp64");
  EXPECT_TRUE(actual.sizes() == expected.sizes() && at::allclose(actual, expected, allowed.value, allowed.value))
      << name;
}

TEST(AttentionParts, Have_the_results_of_the_whole) {
  for (const AttentionCase& each : cases()) {
    const Fake fake(each);
    const auto kernel = [&](const FusedTensors& part, const at::Tensor& sinks) { return fake.forward(part, sinks); };
    const FusedForward expected = kernel(fake.tensors, fake.sinks);
    const AttentionSizes sizes = AttentionSizes::of(fake.tensors, /*is_backward=*/false);
    for (const std::int64_t most_heads : {1, 2, 3, 7}) {
      fake.num_elements = 0;
      const std::int64_t limit = most_heads * elements_of_kv_head(each, /*is_backward=*/false) + 1;
      const FusedForward actual =
          detail::forward_in_parts(fake.tensors, fake.sinks, attention_parts(sizes, limit), kernel);
      EXPECT_LT(fake.num_elements, limit);
      expect_near(actual.out, expected.out, each.name);
      expect_near(actual.logsumexp, expected.logsumexp, each.name);
    }
  }
}

TEST(AttentionParts, Have_the_gradients_of_the_whole) {
  for (const AttentionCase& each : cases()) {
    const Fake fake(each);
    const FusedForward forward = fake.forward(fake.tensors, {});
    for (const bool has_grad_of_logsumexp : {false, true}) {
      const detail::BackwardInputs given{
          .forward = forward,
          .grad_out = values(forward.out.sizes(), 7),
          .grad_logsumexp = has_grad_of_logsumexp ? values(forward.logsumexp.sizes(), 8) : at::Tensor()};
      const auto kernel = [&](const FusedTensors& part, const detail::BackwardInputs& inputs) {
        return fake.backward(part, inputs);
      };
      const FusedGradients expected = kernel(fake.tensors, given);
      const AttentionSizes sizes = AttentionSizes::of(fake.tensors, /*is_backward=*/true);
      for (const std::int64_t most_heads : {1, 2, 3, 7}) {
        const auto parts = attention_parts(sizes, most_heads * elements_of_kv_head(each, /*is_backward=*/true) + 1);
        const FusedGradients actual = detail::backward_in_parts(fake.tensors, given, parts, kernel);
        expect_near(actual.query, expected.query, each.name);
        expect_near(actual.key, expected.key, each.name);
        expect_near(actual.value, expected.value, each.name);
      }
    }
  }
}

}  // namespace
}  // namespace d9d::kernels::attention_parts_test
