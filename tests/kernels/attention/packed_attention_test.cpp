// Packed sequences: each must be treated as if it were alone, on both cores of a CPU and for every option.
#include <numeric>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/kernels/attention/scaled_dot_product_attention.h"

#include "tests/kernels/attention/cached_sequences.h"
#include "tests/kernels/op_testing.h"
#include "tests/support/tolerances.h"

namespace d9d::kernels::packed_attention_test {
namespace {

using attention_testing::cached_sequences;
using attention_testing::CachedSequences;
using attention_testing::kCachedLengths;
using attention_testing::kGatheredLengths;
using attention_testing::kRoom;
using attention_testing::packed_sequences;
using ::d9d::testing::difference;
using ::d9d::testing::values;
using ::d9d::testing::worst_difference;
using Tensors = std::vector<at::Tensor>;

Tensors inputs_of(const std::vector<int>& lengths, std::int64_t num_features, at::ScalarType dtype = at::kDouble) {
  const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), 0);
  return {values({1, total, 4, num_features}, 1, dtype), values({1, total, 2, num_features}, 2, dtype),
          values({1, total, 2, num_features}, 3, dtype), values({4}, 4)};
}

std::vector<std::pair<std::string, SdpaOptions>> all_options() {
  return {{"full", {}},
          {"causal", {.causal = true}},
          {"window", {.causal = true, .window_left = 9}},
          {"window both ways", {.window_left = 3, .window_right = 5}},
          {"softcap", {.causal = true, .softcap = 1.5}}};
}

// Dense attention of each sequence; uses ATen's own causality if there are no other options.
Tensors each_alone(const Tensors& in, const std::vector<int>& lengths, const SdpaOptions& options, bool has_sinks) {
  Tensors outs, logsumexps;
  std::int64_t begin = 0;
  for (const int length : lengths) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, begin, length); };
    const auto query = part(in[0]), key = part(in[1]), value = part(in[2]);
    const auto [out, logsumexp] = eager_attention(
        {.query = query, .key = key, .value = value, .sinks = has_sinks ? std::optional(in[3]) : std::nullopt},
        options);
    outs.push_back(out);
    logsumexps.push_back(logsumexp);
    begin += length;
  }
  return {at::cat(outs, 1), at::cat(logsumexps, 2)};
}

const std::vector<std::vector<int>> kLengths = {{64, 128, 32}, {5}, {0, 7, 0, 1, 20, 0}};

TEST(PackedAttention, Is_dense_attention_of_each_sequence) {
  for (const auto& lengths : kLengths) {
    for (const auto& [name, options] : all_options()) {
      const auto packed = packed_sequences(lengths);
      for (const bool has_sinks : {false, true}) {
        Tensors inputs = inputs_of(lengths, 16);
        if (!has_sinks) inputs.pop_back();
        const auto actual = [&](const Tensors& in) {
          const auto [out, logsumexp] =
              scaled_dot_product_attention_with_logsumexp({.query = in[0],
                                                           .key = in[1],
                                                           .value = in[2],
                                                           .sinks = has_sinks ? std::optional(in[3]) : std::nullopt,
                                                           .packed = packed},
                                                          options);
          return Tensors{out, logsumexp};
        };
        const auto expected = [&](const Tensors& in) { return each_alone(in, lengths, options, has_sinks); };
        EXPECT_LT(worst_difference(actual, expected, inputs), test::tolerance("fp64").value)
            << name << " sinks " << has_sinks;
      }
    }
  }
}

// A GPU without a fused kernel for the call uses one mask like this.
TEST(PackedAttention, Hides_other_sequences) {
  const std::vector<int> lengths = {2, 0, 3, 1};
  const auto packed = packed_sequences(lengths);
  const auto x = at::zeros({1, 6, 1, 1});
  const auto seen = detail::hidden_by_position({.query = x, .key = x, .value = x, .packed = packed}, {.causal = true})
                        .logical_not()
                        .to(at::kInt);
  const auto expected =
      at::block_diag({at::ones({2, 2}).tril(), at::ones({3, 3}).tril(), at::ones({1, 1})}).to(at::kInt);
  EXPECT_TRUE(at::equal(seen, expected)) << seen;
}

TEST(PackedAttention, With_torch_equals_atens_attention_of_each_sequence_for_all_head_dims) {
  const std::vector<int> lengths = {64, 128, 32};
  const auto packed = packed_sequences(lengths);
  for (const std::int64_t num_features : {64, 80, 96, 128}) {
    const auto actual = [&](const Tensors& in) {
      return Tensors{
          torch_attention({.query = in[0], .key = in[1], .value = in[2], .packed = packed}, {.causal = true})};
    };
    const auto expected = [&](const Tensors& in) {
      Tensors outs;
      std::int64_t begin = 0;
      for (const int length : lengths) {
        const auto part = [&](const at::Tensor& x) { return x.narrow(1, begin, length).transpose(1, 2); };
        outs.push_back(at::scaled_dot_product_attention(part(in[0]), part(in[1]), part(in[2]), std::nullopt, 0.0, true,
                                                        std::nullopt, /*enable_gqa=*/true)
                           .transpose(1, 2));
        begin += length;
      }
      return Tensors{at::cat(outs, 1)};
    };
    Tensors inputs = inputs_of(lengths, num_features, at::kFloat);
    inputs.pop_back();
    EXPECT_LT(worst_difference(actual, expected, inputs), 1e-5) << num_features;
    const auto eager = [&](const Tensors& in) {
      return Tensors{
          eager_attention({.query = in[0], .key = in[1], .value = in[2], .packed = packed}, {.causal = true}).out};
    };
    EXPECT_LT(worst_difference(eager, expected, inputs), 1e-5) << num_features;
  }
}

Tensors attend_each_alone(const Tensors& in, const std::vector<int>& num_queries, const std::vector<int>& num_keys,
                          SdpaOptions options, bool has_sinks, int room) {
  Tensors outs;
  std::int64_t first_query = 0, first_key = 0;
  for (std::size_t n = 0; n < num_keys.size(); ++n) {
    const auto query = in[0].narrow(1, first_query, num_queries[n]);
    const auto key = in[1].narrow(1, first_key, num_keys[n]), value = in[2].narrow(1, first_key, num_keys[n]);
    options.first_query = num_keys[n] - num_queries[n];
    const auto sinks = has_sinks ? std::optional(in[3]) : std::nullopt;
    outs.push_back(eager_attention({.query = query, .key = key, .value = value, .sinks = sinks}, options).out);
    first_query += num_queries[n];
    first_key += num_keys[n] + room;
  }
  return {at::cat(outs, 1)};
}

void expect_each_alone(const std::vector<int>& num_queries, const std::vector<int>& num_keys, int room) {
  const CachedSequences cached = cached_sequences(num_queries, num_keys, at::kDouble, room);
  for (const auto& [name, options] : all_options()) {
    for (const bool has_sinks : {false, true}) {
      const auto actual = [&](const Tensors& in) {
        return Tensors{scaled_dot_product_attention({.query = in[0],
                                                     .key = in[1],
                                                     .value = in[2],
                                                     .sinks = has_sinks ? std::optional(in[3]) : std::nullopt,
                                                     .packed = cached.packed,
                                                     .packed_keys = cached.keys},
                                                    options)};
      };
      const auto expected = [&](const Tensors& in) {
        return attend_each_alone(in, num_queries, num_keys, options, has_sinks, room);
      };
      Tensors inputs = cached.inputs;
      if (!has_sinks) inputs.pop_back();
      EXPECT_LT(worst_difference(actual, expected, inputs), test::tolerance("fp64").value)
          << name << " sinks " << has_sinks << " of " << num_keys.size() << " sequences";
    }
  }
}

TEST(PackedAttention, To_packed_keys_is_that_of_the_last_positions_of_each_sequence) {
  for (const auto& [num_queries, num_keys] : kCachedLengths) expect_each_alone(num_queries, num_keys, kRoom);
}

TEST(PackedAttention, To_packed_keys_that_fill_their_rooms_is_that_of_the_last_positions_of_each_sequence) {
  for (const auto& [num_queries, num_keys] : kGatheredLengths) expect_each_alone(num_queries, num_keys, 0);
}

TEST(PackedAttention, With_torch_takes_packed_keys_that_fill_their_rooms) {
  for (const auto& [num_queries, num_keys] : kGatheredLengths) {
    const CachedSequences cached = cached_sequences(num_queries, num_keys, at::kDouble, 0);
    const auto actual = [&](const Tensors& in) {
      return Tensors{torch_attention(
          {.query = in[0], .key = in[1], .value = in[2], .packed = cached.packed, .packed_keys = cached.keys},
          {.causal = true})};
    };
    const auto expected = [&](const Tensors& in) {
      return attend_each_alone(in, num_queries, num_keys, {.causal = true}, false, 0);
    };
    const Tensors inputs(cached.inputs.begin(), cached.inputs.end() - 1);
    EXPECT_LT(worst_difference(actual, expected, inputs), test::tolerance("fp64").value) << num_keys.size();
  }
}

// As a block of keys has them, in which some sequences have few positions or none.
TEST(PackedAttention, Without_causality_takes_fewer_packed_keys_than_queries_or_none) {
  for (const auto& [num_queries, num_keys] : std::vector<std::pair<std::vector<int>, std::vector<int>>>{
           {{3, 0, 4}, {0, 2, 1}}, {{5}, {2}}, {{2, 3}, {4, 0}}, {{2, 1}, {0, 0}}}) {
    const CachedSequences cached = cached_sequences(num_queries, num_keys, at::kDouble, 0);
    const Tensors inputs(cached.inputs.begin(), cached.inputs.end() - 1);
    const auto attend_with = [&](const auto& core) {
      return [&](const Tensors& in) {
        return Tensors{
            core({.query = in[0], .key = in[1], .value = in[2], .packed = cached.packed, .packed_keys = cached.keys})};
      };
    };
    const auto expected = [&](const Tensors& in) { return attend_each_alone(in, num_queries, num_keys, {}, false, 0); };
    const auto eager = attend_with([](const SdpaInputs& all) { return eager_attention(all, {}).out; });
    const auto torch = attend_with([](const SdpaInputs& all) { return torch_attention(all, {}); });
    EXPECT_LT(worst_difference(eager, expected, inputs), test::tolerance("fp64").value) << num_keys.front();
    EXPECT_LT(worst_difference(torch, expected, inputs), test::tolerance("fp64").value) << num_keys.front();
  }
}

TEST(PackedAttention, Hides_the_keys_of_other_sequences_that_fill_their_rooms) {
  const CachedSequences cached = cached_sequences({0, 2, 0, 1}, {2, 3, 0, 1}, at::kDouble, 0);
  const SdpaInputs inputs{.query = cached.inputs[0],
                          .key = cached.inputs[1],
                          .value = cached.inputs[2],
                          .packed = cached.packed,
                          .packed_keys = cached.keys};
  const auto seen = detail::hidden_by_position(inputs, {.causal = true}).logical_not().to(at::kInt);
  const auto expected = at::tensor({0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1}, at::kInt).view({3, 6});
  EXPECT_TRUE(at::equal(seen, expected)) << seen;
}

TEST(PackedAttention, Hides_the_keys_of_other_sequences_and_empty_rows) {
  const CachedSequences cached = cached_sequences({2, 1}, {3, 2});
  const SdpaInputs inputs{.query = cached.inputs[0],
                          .key = cached.inputs[1],
                          .value = cached.inputs[2],
                          .packed = cached.packed,
                          .packed_keys = cached.keys};
  const auto seen = [&](const SdpaOptions& options) {
    return detail::hidden_by_position(inputs, options).logical_not().to(at::kInt);
  };
  const auto rows = [](const std::vector<std::vector<int>>& of_queries) {
    Tensors tensors;
    for (const auto& row : of_queries) tensors.push_back(at::constant_pad_nd(at::tensor(row, at::kInt), {0, 6}));
    return at::stack(tensors);
  };
  EXPECT_TRUE(at::equal(seen({.causal = true}),
                        rows({{1, 1, 0, 0, 0, 0, 0, 0}, {1, 1, 1, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 1, 1}})));
  EXPECT_TRUE(
      at::equal(seen({}), rows({{1, 1, 1, 0, 0, 0, 0, 0}, {1, 1, 1, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 1, 1}})));
  EXPECT_TRUE(at::equal(seen({.causal = true, .window_left = 0}),
                        rows({{0, 1, 0, 0, 0, 0, 0, 0}, {0, 0, 1, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 1}})));
}

TEST(PackedAttention, Rejects_packed_keys_that_do_not_fit) {
  const auto attend = [](const CachedSequences& cached) {
    (void)scaled_dot_product_attention({.query = cached.inputs[0],
                                        .key = cached.inputs[1],
                                        .value = cached.inputs[2],
                                        .packed = cached.packed,
                                        .packed_keys = cached.keys},
                                       {.causal = true});
  };
  EXPECT_NO_THROW(attend(cached_sequences({2, 1}, {3, 2})));
  EXPECT_THROW(attend(cached_sequences({2, 1}, {1, 2})), ConfigError) << "fewer keys than queries";
  CachedSequences cached = cached_sequences({2, 1}, {3, 2});
  cached.keys.lengths = at::tensor({3, 6}, at::kInt);
  EXPECT_THROW(attend(cached), ConfigError) << "more keys than room";
  cached.keys.lengths = at::tensor({3}, at::kInt);
  EXPECT_THROW(attend(cached), ConfigError) << "another number of sequences";
  cached.keys.lengths = at::Tensor();
  EXPECT_THROW(attend(cached), ConfigError) << "rows that belong to no sequence";
  cached = cached_sequences({2, 1}, {3, 2});
  const SdpaInputs dense{
      .query = cached.inputs[0], .key = cached.inputs[1], .value = cached.inputs[2], .packed_keys = cached.keys};
  EXPECT_THROW((void)scaled_dot_product_attention(dense, {.causal = true}), ConfigError);
}

TEST(PackedAttention, In_rows_is_that_in_one_row) {
  const auto query = values({1, 12, 4, 8}, 1), key = values({1, 12, 2, 8}, 2), value = values({1, 12, 2, 8}, 3);
  const PackedSequences packed{.cu_seqlens = at::tensor({0, 3, 4, 10, 12}, at::kInt), .max_length = 6};
  const auto rows = [](const at::Tensor& x) { return x.view({3, 4, x.size(2), 8}); };
  const SdpaOptions options{.causal = true};
  const auto expected = scaled_dot_product_attention_with_logsumexp(
      {.query = query, .key = key, .value = value, .packed = packed}, options);
  const SdpaInputs in_rows{.query = rows(query), .key = rows(key), .value = rows(value), .packed = packed};
  const auto [out, logsumexp] = scaled_dot_product_attention_with_logsumexp(in_rows, options);
  EXPECT_TRUE(at::equal(out, rows(expected.out)));
  EXPECT_EQ(logsumexp.sizes(), (at::IntArrayRef{3, 4, 4}));
  EXPECT_TRUE(at::equal(logsumexp.transpose(0, 1).flatten(1), expected.logsumexp.squeeze(0)));
  const at::Tensor alone =
      scaled_dot_product_attention({.query = query, .key = key, .value = value, .packed = packed}, options);
  EXPECT_TRUE(at::equal(scaled_dot_product_attention(in_rows, options), rows(alone)));  // perhaps by another core
}

TEST(PackedAttention, Of_no_positions_is_empty) {
  const auto x = values({1, 0, 2, 8}, 1);
  const PackedSequences packed{.cu_seqlens = at::zeros({3}, at::kInt)};
  EXPECT_EQ(scaled_dot_product_attention({.query = x, .key = x, .value = x, .packed = packed}, {}).sizes(), x.sizes());
}

TEST(PackedAttention, Rejects_sequences_that_do_not_fit) {
  const auto x = values({1, 6, 2, 8}, 1);
  const auto attend = [](const at::Tensor& input, const at::Tensor& cu_seqlens, std::int64_t max_length) {
    const PackedSequences packed{.cu_seqlens = cu_seqlens, .max_length = max_length};
    (void)scaled_dot_product_attention({.query = input, .key = input, .value = input, .packed = packed}, {});
  };
  EXPECT_NO_THROW(attend(x, at::tensor({0, 4, 6}, at::kInt), 4));
  EXPECT_THROW(attend(values({2, 2, 2, 8}, 1), at::tensor({0, 4, 6}, at::kInt), 4), ConfigError);
  EXPECT_THROW(attend(x, at::tensor({0, 4, 6}, at::kLong), 4), ConfigError);
  EXPECT_THROW(attend(x, at::tensor({0, 4, 5}, at::kInt), 4), ConfigError);
  EXPECT_THROW(attend(x, at::tensor({0, 4, 6}, at::kInt), 3), ConfigError);
  EXPECT_THROW(attend(x, at::tensor({0, 4, 6}, at::kInt), 0), ConfigError);
  EXPECT_THROW(attend(x, at::tensor({0, 4, 3, 6}, at::kInt), 4), ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::packed_attention_test
