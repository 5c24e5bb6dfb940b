#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/moe_permute/indices_to_multihot.h"
#include "d9d/kernels/moe_permute/moe_permute.h"
#include "d9d/kernels/moe_permute/moe_permute_impl.h"

#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/op_testing.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

namespace d9d::kernels::moe_permute_cuda_test {
namespace {

using ::d9d::testing::backward;
using ::d9d::testing::difference;
using ::d9d::testing::kGpu;
using ::d9d::testing::leaf;
using ::d9d::testing::values;

class TokenPermutationCuda : public testing::CudaTest {};
class MoePermuteCuda : public testing::CudaTest {};
class IndicesToMultihotCuda : public testing::CudaTest {};

// Random expert ids, some of them -1 if requested.
at::Tensor expert_ids(std::int64_t num_tokens, std::int64_t num_choices, std::int64_t num_experts, bool all_here) {
  const at::Tensor ids = values({num_tokens, num_choices}, 3).mul_(1e6).to(at::kLong).remainder(num_experts);
  return all_here ? ids : at::where(values({num_tokens, num_choices}, 4).gt(0.5), -1, ids);
}

void expect_equal(const TokenPermutation& actual, const TokenPermutation& expected) {
  EXPECT_TRUE(at::equal(actual.row_to_slot.to(at::kCPU), expected.row_to_slot));
  EXPECT_TRUE(at::equal(actual.row_to_token.to(at::kCPU), expected.row_to_token));
  EXPECT_TRUE(at::equal(actual.slot_to_row.to(at::kCPU), expected.slot_to_row));
  EXPECT_TRUE(at::equal(actual.groups.offsets().to(at::kCPU), expected.groups.offsets()));
  EXPECT_EQ(actual.groups.host_counts(), expected.groups.host_counts());
}

TEST_F(TokenPermutationCuda, Equals_the_cpu) {
  for (const std::int64_t num_experts : {1, 2, 31, 32, 33, 64, 128, 500, 1024, 1500}) {
    for (const std::int64_t num_tokens : {0, 1, 4, 31, 255, 256, 257, 700, 3000}) {
      for (const std::int64_t num_choices : {1, 3, 8}) {
        for (const bool all_here : {true, false}) {
          SCOPED_TRACE(cat(num_experts, " experts, ", num_tokens, " tokens, top ", num_choices));
          const at::Tensor ids = expert_ids(num_tokens, num_choices, num_experts, all_here);
          const std::int64_t num_rows = ids.ge(0).sum().item<std::int64_t>();
          const TokenPermutation expected = build_token_permutation({.expert_ids = ids, .num_experts = num_experts});
          const at::Tensor on_gpu = ids.to(kGpu);
          expect_equal(build_token_permutation({.expert_ids = on_gpu, .num_experts = num_experts}), expected);
          expect_equal(
              build_token_permutation({.expert_ids = on_gpu, .num_experts = num_experts, .num_rows = num_rows}),
              expected);
        }
      }
    }
  }
}

TEST_F(TokenPermutationCuda, Sorts_a_step_of_which_all_tokens_choose_alike) {
  const at::Tensor ids = at::arange(8).expand({8192, 8}).contiguous();
  expect_equal(build_token_permutation({.expert_ids = ids.to(kGpu), .num_experts = 64, .num_rows = 8 * 8192}),
               build_token_permutation({.expert_ids = ids, .num_experts = 64}));
}

struct Moved {
  std::map<std::string, at::Tensor> outputs;
  std::map<std::string, at::Tensor> gradients;
};

struct MoveCase {
  at::Tensor x, probs, y, merging_probs;
  TokenPermutation permutation;
};

// Inputs on the CPU.
MoveCase move_case(std::int64_t num_tokens, std::int64_t num_choices, std::int64_t num_features, at::ScalarType dtype,
                   at::ScalarType probs_dtype, bool all_here) {
  const at::Tensor ids = expert_ids(num_tokens, num_choices, 7, all_here);
  TokenPermutation permutation = build_token_permutation({.expert_ids = ids, .num_experts = 7});
  const std::int64_t num_rows = permutation.row_to_slot.size(0);
  return {.x = values({num_tokens, num_features}, 1, dtype),
          .probs = values({num_tokens, num_choices}, 2, probs_dtype),
          .y = values({num_rows, num_features}, 5, dtype),
          .merging_probs = values({num_tokens, num_choices}, 6, probs_dtype),
          .permutation = std::move(permutation)};
}

Moved move(const MoveCase& inputs, at::Device device) {
  const auto there = [&](const at::Tensor& tensor) { return leaf(tensor.to(device)); };
  const at::Tensor x = there(inputs.x), probs = there(inputs.probs), y = there(inputs.y), z = there(inputs.y),
                   merging_probs = there(inputs.merging_probs), fixed_probs = inputs.merging_probs.to(device);
  const TokenPermutation permutation{.row_to_slot = inputs.permutation.row_to_slot.to(device),
                                     .row_to_token = inputs.permutation.row_to_token.to(device),
                                     .slot_to_row = inputs.permutation.slot_to_row.to(device),
                                     .groups = inputs.permutation.groups};
  const auto [rows, row_probs] = permute(x, probs, permutation);
  const at::Tensor plain = unpermute(y, permutation);
  const at::Tensor weighted = unpermute(y, permutation, merging_probs);
  const at::Tensor fixed = unpermute(z, permutation, fixed_probs);
  const std::vector<at::Tensor> outputs = {rows, row_probs, plain, weighted, fixed};
  std::vector<at::Tensor> grads;
  for (const at::Tensor& output : outputs)
    grads.push_back(values(output.sizes(), 10 + grads.size()).to(output.options()));
  backward(outputs, grads);
  Moved result;
  const auto back = [](const at::Tensor& tensor) { return tensor.detach().to(at::kCPU); };
  result.outputs = {{"rows", back(rows)},
                    {"row probs", back(row_probs)},
                    {"plain", back(plain)},
                    {"weighted", back(weighted)},
                    {"fixed", back(fixed)}};
  result.gradients = {{"x", back(x.grad())},
                      {"probs", back(probs.grad())},
                      {"y", back(y.grad())},
                      {"z", back(z.grad())},
                      {"merging probs", back(merging_probs.grad())}};
  return result;
}

double tolerance_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-13 : dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 2e-3 : 1.6e-2;
}

TEST_F(MoePermuteCuda, Equals_the_cpu) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const at::ScalarType probs_dtype : {at::kFloat, dtype}) {
      for (const std::int64_t num_tokens : {0, 1, 31, 70}) {
        for (const std::int64_t num_choices : {1, 8, 11}) {
          for (const std::int64_t num_features : {1, 7, 8, 33, 264, 520}) {
            SCOPED_TRACE(cat(dtype, " ", num_tokens, " tokens, top ", num_choices, ", ", num_features, " features"));
            const MoveCase inputs =
                move_case(num_tokens, num_choices, num_features, dtype, probs_dtype, num_tokens % 2 == 0);
            const Moved expected = move(inputs, at::kCPU), actual = move(inputs, kGpu);
            const double allowed = tolerance_of(dtype);
            for (const auto& [name, tensor] : expected.outputs)
              EXPECT_LT(difference(actual.outputs.at(name), tensor), allowed) << name;
            for (const auto& [name, tensor] : expected.gradients)
              EXPECT_LT(difference(actual.gradients.at(name), tensor), allowed) << name;
            EXPECT_TRUE(at::equal(actual.outputs.at("rows"), expected.outputs.at("rows")));
            EXPECT_TRUE(at::equal(actual.outputs.at("row probs"), expected.outputs.at("row probs")));
            EXPECT_TRUE(at::equal(actual.gradients.at("probs"), expected.gradients.at("probs")));
          }
        }
      }
    }
  }
}

TEST_F(MoePermuteCuda, Combines_as_exactly_as_aten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const MoveCase inputs = move_case(300, 8, 520, dtype, at::kFloat, false);
    const at::Tensor rows = inputs.y.to(kGpu), slots = inputs.permutation.slot_to_row.to(kGpu),
                     weights = inputs.merging_probs.to(kGpu);
    testing::expect_no_worse(
        {{"plain", detail::combine_rows(rows, slots, {})}, {"weighted", detail::combine_rows(rows, slots, weights)}},
        {{"plain", detail::combine_rows_aten(rows, slots, {})},
         {"weighted", detail::combine_rows_aten(rows, slots, weights)}},
        {{"plain", detail::combine_rows_aten(rows.to(at::kDouble), slots, {})},
         {"weighted", detail::combine_rows_aten(rows.to(at::kDouble), slots, weights)}});
  }
}

TEST_F(MoePermuteCuda, Ignores_what_rows_without_a_slot_hold_and_takes_unaligned_views) {
  const MoveCase inputs = move_case(50, 4, 16, at::kBFloat16, at::kFloat, false);
  const std::int64_t num_rows = inputs.y.size(0);
  const at::Tensor storage = at::full({num_rows * 16 + 1}, std::nan(""), at::TensorOptions(kGpu).dtype(at::kBFloat16));
  const at::Tensor unaligned = storage.narrow(0, 1, num_rows * 16).view({num_rows, 16});
  unaligned.copy_(inputs.y);
  const at::Tensor slots = inputs.permutation.slot_to_row.to(kGpu);
  EXPECT_TRUE(
      at::equal(detail::combine_rows(unaligned, slots, {}), detail::combine_rows(inputs.y.to(kGpu), slots, {})));
  const at::Tensor strided = inputs.y.to(kGpu).t().contiguous().t();
  EXPECT_TRUE(at::equal(detail::combine_rows(strided, slots, {}), detail::combine_rows(inputs.y.to(kGpu), slots, {})));
}

TEST_F(MoePermuteCuda, Is_bit_equal_from_run_to_run) {
  const MoveCase inputs = move_case(500, 8, 264, at::kBFloat16, at::kFloat, true);
  const Moved first = move(inputs, kGpu), second = move(inputs, kGpu);
  for (const auto& [name, tensor] : first.outputs) EXPECT_TRUE(at::equal(tensor, second.outputs.at(name))) << name;
  for (const auto& [name, tensor] : first.gradients) EXPECT_TRUE(at::equal(tensor, second.gradients.at(name))) << name;
}

// T * k * H is more than 32 bits can count.
TEST_F(MoePermuteCuda, Moves_more_than_2_31_elements) {
  if (testing::free_bytes() < (std::int64_t{60} << 30)) GTEST_SKIP() << "needs 60 GiB";
  constexpr std::int64_t kTokens = 140000, kChoices = 8, kFeatures = 2048;
  const at::TensorOptions options(kGpu);
  const at::Tensor ids =
      (at::arange(kTokens, options.dtype(at::kLong)).unsqueeze(1) * 3 + at::arange(kChoices, options.dtype(at::kLong)))
          .remainder(64);
  const TokenPermutation permutation =
      build_token_permutation({.expert_ids = ids, .num_experts = 64, .num_rows = kTokens * kChoices});
  const at::Tensor x = testing::ramp({kTokens, kFeatures}, 0.3, at::kBFloat16);
  const auto [rows, row_probs] = permute(x, at::ones({kTokens, kChoices}, options), permutation);
  const at::Tensor last = at::tensor({0L, kTokens * kChoices / 2, kTokens * kChoices - 1}, at::kLong).to(kGpu);
  EXPECT_TRUE(at::equal(rows.index_select(0, last), x.index_select(0, permutation.row_to_token.index_select(0, last))));
  EXPECT_TRUE(at::equal(unpermute(rows, permutation), x * 8));  // the sum of eight equals is exact
}

TEST_F(MoePermuteCuda, Does_not_wait_for_the_device) {
  const MoveCase inputs = move_case(60, 8, 64, at::kBFloat16, at::kFloat, true);
  const at::Tensor x = leaf(inputs.x.to(kGpu)), probs = leaf(inputs.probs.to(kGpu));
  const at::Tensor ids = expert_ids(60, 8, 7, true).to(kGpu);
  EXPECT_FALSE(test::waits_for_device([&] {
    const TokenPermutation permutation =
        build_token_permutation({.expert_ids = ids, .num_experts = 7, .num_rows = 480});
    const auto [rows, row_probs] = permute(x, probs, permutation);
    const at::Tensor y = unpermute(rows * row_probs.unsqueeze(1), permutation, probs);
    backward({y.sum()}, {at::Tensor()});
  }));
}

TEST_F(IndicesToMultihotCuda, Equals_the_cpu) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t num_tokens : {0, 1, 33, 500}) {
      for (const std::int64_t num_experts : {1, 8, 65}) {
        const at::Tensor ids =
            at::argsort(values({num_tokens, 2 * num_experts}, 1), 1, false).narrow(1, 0, num_experts) - 1;
        const at::Tensor expected_probs = leaf(values({num_tokens, num_experts}, 2, dtype));
        const at::Tensor probs = leaf(expected_probs.detach().to(kGpu));
        const MultihotChoices expected = indices_to_multihot(ids, expected_probs, num_experts);
        const MultihotChoices actual = indices_to_multihot(ids.to(kGpu), probs, num_experts);
        EXPECT_TRUE(at::equal(actual.mask.to(at::kCPU), expected.mask));
        EXPECT_TRUE(at::equal(actual.probs.to(at::kCPU), expected.probs));
        const at::Tensor grad = values(expected.probs.sizes(), 3, dtype);
        backward({expected.probs}, {grad});
        backward({actual.probs}, {grad.to(kGpu)});
        EXPECT_TRUE(at::equal(probs.grad().to(at::kCPU), expected_probs.grad()));
      }
    }
  }
}

}  // namespace
}  // namespace d9d::kernels::moe_permute_cuda_test
