// Attention to blocks of keys and its gradients, compared with eager attention to all keys.
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/attention/fused_kernels.h"

#include "tests/kernels/attention/attention_testing.h"
#include "tests/kernels/attention/blockwise.h"
#include "tests/support/tolerances.h"

namespace d9d::kernels::attention_blocks_test {
namespace {

using attention_testing::AttentionCase;
using attention_testing::blockwise_attention;
using attention_testing::function_of;
using attention_testing::inputs_of;
using ::d9d::testing::outputs_and_gradients;
using ::d9d::testing::values;

std::vector<AttentionCase> cases() {
  return {{.name = "full", .num_queries = 21, .num_keys = 30},
          {.name = "causal", .options = {.causal = true}, .num_queries = 30, .num_keys = 30},
          {.name = "sinks", .options = {.causal = true}, .has_sinks = true, .num_queries = 30, .num_keys = 30},
          {.name = "softcap", .options = {.causal = true, .softcap = 2.0}, .num_queries = 30, .num_keys = 30},
          {.name = "one_head", .num_heads = 1, .num_kv_heads = 1, .num_queries = 30, .num_keys = 30},
          {.name = "itself", .options = {.causal = true, .window_left = 0}, .num_queries = 30, .num_keys = 30},
          {.name = "window", .options = {.causal = true, .window_left = 7}, .num_queries = 30, .num_keys = 30},
          {.name = "wide_window", .options = {.causal = true, .window_left = 20}, .num_queries = 30, .num_keys = 30}};
}

// Sequences that a bound of blocks cuts, or is at, or which are on one side of it; some are empty.
std::vector<AttentionCase> packed_cases(int unit) {
  const std::vector<std::vector<int>> all = {{30 * unit},
                                             {3 * unit, 0, 20 * unit, 1 * unit, 6 * unit},
                                             {15 * unit, 14 * unit, unit},
                                             {0, 0, 16 * unit, 14 * unit}};
  std::vector<AttentionCase> cases;
  for (const std::vector<int>& lengths : all) {
    cases.push_back({.name = "packed_causal", .options = {.causal = true}, .lengths = lengths, .has_sinks = true});
    cases.push_back({.name = "packed_full", .lengths = lengths});
    cases.push_back({.name = "packed_softcap", .options = {.causal = true, .softcap = 2.0}, .lengths = lengths});
  }
  return cases;
}

void expect_equals_eager(const AttentionCase& each) {
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& input : inputs_of(each, at::kDouble)) inputs.push_back(input.to(at::kDouble));
  const auto expected = outputs_and_gradients(function_of(each, eager_attention), inputs);
  const auto actual = outputs_and_gradients(function_of(each, blockwise_attention), inputs);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const test::Tolerance allowed = test::tolerance("fp64");
    EXPECT_TRUE(at::allclose(actual[i], expected[i], allowed.value, allowed.value)) << each.name << " result " << i;
  }
}

TEST(FlashRefusal, Names_windows_of_more_queries_than_keys) {
  const auto refusal_of = [](std::int64_t num_queries, std::int64_t num_keys, const detail::FusedCall& call) {
    const auto meta = [](std::int64_t count) {
      return at::empty({1, count, 2, 8}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
    };
    const char* const refusal = detail::flash_refusal(
        {.query = meta(num_queries), .key = meta(num_keys), .value = meta(num_keys), .cu_seqlens = {}}, call);
    return std::string(refusal == nullptr ? "" : refusal);
  };
  EXPECT_EQ(refusal_of(9, 8, {.left = 3}), "takes no window with more queries than keys");
  EXPECT_EQ(refusal_of(9, 8, {.right = 0}), "takes no window with more queries than keys");
  EXPECT_EQ(refusal_of(9, 8, {}), "");
  EXPECT_EQ(refusal_of(8, 8, {.left = 3}), "");
  EXPECT_EQ(refusal_of(8, 8, {.softcap = 2}), "takes no softcap");
}

TEST(AttentionBlocks, Merged_equal_attention_to_all_keys) {
  for (const AttentionCase& each : cases()) expect_equals_eager(each);
}

TEST(AttentionBlocks, Of_packed_sequences_merged_equal_attention_to_all_keys) {
  for (const AttentionCase& each : packed_cases(1)) expect_equals_eager(each);
}

TEST(AttentionBlocks, Of_packed_sequences_without_keys_are_nothing) {
  const at::Tensor query = values({1, 5, 2, 8}, 1, at::kFloat), key = values({1, 4, 2, 8}, 2, at::kFloat);
  const SdpaInputs inputs{.query = query,
                          .key = key,
                          .value = key,
                          .packed = PackedSequences{at::tensor({0, 3, 3, 5}, at::kInt), 3},
                          .packed_keys = PackedKeys{at::tensor({0, 0, 2, 4}, at::kInt), {}, 2}};
  const SdpaOutput result = attend_to_block(inputs, {});
  EXPECT_EQ(result.out.narrow(1, 0, 3).abs().sum().item<float>(), 0);
  EXPECT_TRUE(at::isneginf(result.logsumexp.narrow(2, 0, 3)).all().item<bool>());
  EXPECT_TRUE(result.logsumexp.narrow(2, 3, 2).isfinite().all().item<bool>());
  EXPECT_THROW((void)attend_to_block(inputs, {.causal = true}), ConfigError);
}

TEST(AttentionBlocks, That_no_query_sees_leave_the_sink_or_nothing) {
  const at::Tensor query = values({1, 3, 2, 4}, 1, at::kFloat), sinks = values({2}, 2, at::kFloat);
  EXPECT_EQ(merge_blocks({}, query).out.abs().sum().item<float>(), 0);
  EXPECT_TRUE(at::isneginf(merge_blocks({}, query).logsumexp).all().item<bool>());
  EXPECT_TRUE(at::equal(merge_blocks({}, query, sinks).logsumexp, sinks.view({1, 2, 1}).expand({1, 2, 3})));
}

class AttentionBlocksCuda : public ::d9d::testing::CudaTest {};

TEST_F(AttentionBlocksCuda, Merged_equal_attention_to_all_keys) {
  for (AttentionCase each : cases()) {
    each.num_queries = each.num_keys = 192;
    for (const std::int64_t num_features : {64, 128, 256}) {
      if (num_features > 128 && each.options.softcap) continue;
      each.num_features = num_features;
      for (const auto dtype : {at::kBFloat16, at::kHalf}) {
        EXPECT_EQ(attention_testing::error_against_eager(each, dtype, blockwise_attention), "")
            << each.name << ", " << num_features << " features, " << dtype;
      }
    }
  }
}

TEST_F(AttentionBlocksCuda, Of_packed_sequences_merged_equal_attention_to_all_keys) {
  for (AttentionCase each : packed_cases(16)) {
    for (const std::int64_t num_features : {64, 128, 256}) {
      if (num_features > 128 && each.options.softcap) continue;
      each.num_features = num_features;
      for (const auto dtype : {at::kBFloat16, at::kHalf}) {
        EXPECT_EQ(attention_testing::error_against_eager(each, dtype, blockwise_attention), "")
            << each.name << " of " << each.lengths.size() << ", " << num_features << " features, " << dtype;
      }
    }
  }
}

TEST_F(AttentionBlocksCuda, Of_packed_sequences_merged_equal_attention_to_all_keys_by_FlashAttention) {
  const attention_testing::Deterministic deterministic;
  for (const AttentionCase& each : packed_cases(16)) {
    EXPECT_EQ(attention_testing::error_against_eager(each, at::kBFloat16, blockwise_attention), "")
        << each.name << " of " << each.lengths.size();
  }
}

// Queries that are `distance` behind the first key, of tensors that are parts of others.
TEST_F(AttentionBlocksCuda, Of_windows_equal_eager) {
  constexpr std::int64_t kWindow = 300;
  for (const auto& [num_queries, num_keys, distance] : std::vector<std::array<std::int64_t, 3>>{
           {128, 128, 128}, {128, 128, 256}, {256, 128, 128}, {44, 44, 300}, {9, 9, 300}}) {
    const auto values = [](std::int64_t count, std::int64_t num_heads) {
      const at::Tensor all =
          at::randn({2, count + 7, num_heads, 128}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
      return all.narrow(1, 7, count);
    };
    const at::Tensor q = values(num_queries, 4), k = values(num_keys, 2), v = values(num_keys, 2);
    const SdpaOptions options{.window_left = kWindow, .first_query = distance};
    const SdpaOutput actual = attend_to_block({.query = q, .key = k, .value = v}, options, {});
    const at::Tensor wide[] = {q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble)};
    const SdpaOutput expected = eager_attention({.query = wide[0], .key = wide[1], .value = wide[2]}, options);
    EXPECT_TRUE(attention_testing::is_near(actual.out, expected.out)) << num_queries << " from " << distance;
    EXPECT_TRUE(attention_testing::is_near(actual.logsumexp, expected.logsumexp))
        << num_queries << " from " << distance;
  }
}

TEST_F(AttentionBlocksCuda, Of_many_parts_are_merged_as_by_operations_of_torch) {
  const at::Tensor query = at::empty({2, 40, 3, 128}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  const at::Tensor sinks = values({3}, 9, at::kFloat).to(at::kCUDA);
  std::vector<SdpaPart> parts, on_cpu;
  for (const auto& [first, count] : std::vector<std::pair<int, int>>{{0, 40}, {20, 20}, {5, 1}, {0, 10}, {39, 1}}) {
    const SdpaPart part{
        {values({2, count, 3, 128}, 3 + first, at::kBFloat16), values({2, 3, count}, 4 + first, at::kFloat)}, first};
    on_cpu.push_back(part);
    parts.push_back({{part.result.out.to(at::kCUDA), part.result.logsumexp.to(at::kCUDA)}, first});
  }
  const SdpaOutput actual = merge_blocks(parts, query, sinks),
                   expected = merge_blocks(on_cpu, query.cpu(), sinks.cpu());
  EXPECT_TRUE(attention_testing::is_near(actual.out.cpu(), expected.out));
  EXPECT_TRUE(attention_testing::is_near(actual.logsumexp.cpu(), expected.logsumexp));
}

// Queries of 2^31 elements see few keys, so that the last of them can be computed alone.
TEST_F(AttentionBlocksCuda, Count_more_than_two_to_the_31_elements) {
  constexpr std::int64_t kFirst = 1 << 19, kLast = 200, kKeys = 256;
  const bool fits = ::d9d::testing::fits_into_memory([&] {
    using ::d9d::testing::device_values;
    const at::Tensor last = device_values({1, kLast, 32, 128}, 1, at::kBFloat16);
    const at::Tensor k = device_values({1, kKeys, 8, 128}, 2, at::kBFloat16),
                     v = device_values(k.sizes(), 3, at::kBFloat16);
    const at::Tensor grad = device_values(last.sizes(), 4, at::kBFloat16);
    const auto longer = [&](const at::Tensor& tail) { return at::constant_pad_nd(tail, {0, 0, 0, 0, kFirst, 0}); };
    const auto gradients = [&](const at::Tensor& q, const at::Tensor& grad_out, SdpaOutput& merged) {
      const SdpaInputs inputs{.query = q, .key = k, .value = v};
      const std::vector<SdpaPart> parts = {{attend_to_block(inputs, {})}, {attend_to_block(inputs, {})}};
      merged = merge_blocks(parts, q);
      return block_gradients(grad_out, inputs, merged, {});
    };
    SdpaOutput actual, expected;
    const SdpaGradients found = gradients(longer(last), longer(grad), actual), wanted = gradients(last, grad, expected);
    EXPECT_TRUE(attention_testing::is_near(actual.out.narrow(1, kFirst, kLast), expected.out));
    EXPECT_TRUE(attention_testing::is_near(actual.logsumexp.narrow(2, kFirst, kLast), expected.logsumexp));
    EXPECT_TRUE(attention_testing::is_near(found.query.narrow(1, kFirst, kLast), wanted.query));
    EXPECT_TRUE(attention_testing::is_near(found.key, wanted.key));
    EXPECT_TRUE(attention_testing::is_near(found.value, wanted.value));
  });
  if (!fits) GTEST_SKIP() << "the device has too little memory";
}

}  // namespace
}  // namespace d9d::kernels::attention_blocks_test
