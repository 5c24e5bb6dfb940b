// Compares the fused kernels of a GPU with eager attention in fp64.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "d9d/base/check.h"

#include "tests/kernels/attention/attention_testing.h"
#include "tests/kernels/attention/cached_sequences.h"
#include "tests/support/device.h"

namespace d9d::kernels::fused_attention_cuda_test {
namespace {

using attention_testing::bands;
using attention_testing::error_of;
using attention_testing::function_of;
using attention_testing::inputs_of;
using attention_testing::is_near;
using attention_testing::on_gpu;
using attention_testing::packed_of;
using ::d9d::testing::outputs_and_gradients;
using ::d9d::testing::values;
using Case = attention_testing::AttentionCase;
using Tensors = std::vector<at::Tensor>;

class FusedAttentionCuda : public ::d9d::testing::CudaTest, public ::testing::WithParamInterface<FusedSdpaKernel> {};
INSTANTIATE_TEST_SUITE_P(With, FusedAttentionCuda, ::testing::Values(FusedSdpaKernel::kCudnn, FusedSdpaKernel::kFlash),
                         [](const auto& kernel) {
                           return kernel.param == FusedSdpaKernel::kCudnn ? "cudnn" : "flash";
                         });

// cuDNN takes tenths of a second for the first plan of a kernel, so there are few combinations of shapes and options.
TEST_P(FusedAttentionCuda, Equals_eager_for_all_bands) {
  for (Case each : bands()) {
    EXPECT_EQ(error_of(each, GetParam()), "") << each.name;
    each.num_features = 128;
    EXPECT_EQ(error_of(each, GetParam(), at::kHalf), "") << each.name << " half";
  }
}

TEST_P(FusedAttentionCuda, Equals_eager_for_all_head_dims) {
  for (const auto& lengths : {std::vector<int>{}, std::vector<int>{64, 128, 32}}) {
    for (const std::int64_t num_features : {8, 64, 80, 96, 128, 192}) {
      const Case each{.options = {.causal = true, .window_left = 40}, .lengths = lengths, .num_features = num_features};
      EXPECT_EQ(error_of(each, GetParam()), "") << num_features << " packed " << lengths.size();
      EXPECT_EQ(error_of(each, GetParam(), at::kHalf), "") << num_features << " half, packed " << lengths.size();
    }
  }
}

TEST_P(FusedAttentionCuda, Equals_eager_for_all_head_counts) {
  for (const auto& [num_heads, num_kv_heads] :
       std::vector<std::pair<int, int>>{{8, 8}, {8, 2}, {8, 1}, {1, 1}, {6, 3}}) {
    Case each{.options = {.causal = true, .window_left = 40}, .num_heads = num_heads, .num_kv_heads = num_kv_heads};
    EXPECT_EQ(error_of(each, GetParam()), "") << num_heads << " " << num_kv_heads;
    each.lengths = {64, 128, 32};
    EXPECT_EQ(error_of(each, GetParam()), "") << num_heads << " " << num_kv_heads << " packed";
  }
}

TEST_P(FusedAttentionCuda, Equals_eager_for_lengths_around_a_tile) {
  for (const std::int64_t length : {1, 2, 31, 33, 64, 65, 127, 129, 257}) {
    Case each{.options = {.causal = true}, .num_queries = length, .num_keys = length};
    EXPECT_EQ(error_of(each, GetParam()), "") << length;
    each.options.window_left = 50;
    each.has_sinks = true;
    EXPECT_EQ(error_of(each, GetParam()), "") << length << " window and sinks";
  }
}

TEST_P(FusedAttentionCuda, Of_a_part_of_the_queries_equals_eager) {
  for (Case each : bands()) {
    each.num_queries = 60;
    for (const std::int64_t first : {0, 143}) {
      each.options.first_query = first;
      EXPECT_EQ(error_of(each, GetParam()), "") << each.name << " from " << first;
    }
  }
}

TEST_P(FusedAttentionCuda, Of_more_queries_than_keys_equals_eager) {
  for (Case each : bands()) {
    each.num_queries = 150;
    each.num_keys = 90;
    for (const std::int64_t first : {0, 35, 60}) {
      each.options.first_query = first;
      EXPECT_EQ(error_of(each, GetParam()), "") << each.name << " from " << first;
    }
  }
}

TEST_P(FusedAttentionCuda, Equals_eager_for_packed_sequences) {
  for (const auto& lengths : {std::vector<int>{64, 128, 32}, {224}, {0, 1, 0, 100, 33, 0}, {5, 6, 7, 8, 9}}) {
    for (Case each : bands()) {
      each.lengths = lengths;
      EXPECT_EQ(error_of(each, GetParam()), "") << each.name << " " << lengths.size();
    }
  }
}

TEST_P(FusedAttentionCuda, Equals_eager_with_sinks_and_their_gradient) {
  for (Case each : bands()) {
    each.has_sinks = true;
    EXPECT_EQ(error_of(each, GetParam()), "") << each.name;
    each.lengths = {64, 128, 32};
    EXPECT_EQ(error_of(each, GetParam()), "") << each.name << " packed";
  }
  Case each{.options = {.causal = true}, .has_sinks = true};
  for (const std::int64_t num_features : {8, 80, 128}) {
    each.num_features = num_features;
    EXPECT_EQ(error_of(each, GetParam(), at::kHalf), "") << num_features;
  }
}

TEST_P(FusedAttentionCuda, Returns_the_logsumexp_and_takes_its_gradient) {
  for (Case each : bands()) {
    each.returns_logsumexp = true;
    for (const bool has_sinks : {false, true}) {
      each.has_sinks = has_sinks;
      each.lengths = {};
      EXPECT_EQ(error_of(each, GetParam()), "") << each.name << " sinks " << has_sinks;
      each.lengths = {64, 128, 32};
      EXPECT_EQ(error_of(each, GetParam()), "") << each.name << " packed, sinks " << has_sinks;
    }
  }
}

// Keys in a cache, as a decoder has them, against the cores of a CPU, which attend to each sequence alone.
TEST_P(FusedAttentionCuda, To_packed_keys_equals_eager) {
  for (const auto& [num_queries, num_keys] : attention_testing::kCachedLengths) {
    for (const auto dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {  // of kDouble the eager core
      const auto cached = attention_testing::cached_sequences(num_queries, num_keys, dtype);
      for (const Case& each : bands()) {
        for (const bool has_sinks : {false, true}) {
          const auto run = [&](const Tensors& in, at::Device device) {
            const PackedSequences packed{.cu_seqlens = cached.packed.cu_seqlens.to(device),
                                         .max_length = cached.packed.max_length};
            const PackedKeys keys{.cu_seqlens = cached.keys.cu_seqlens.to(device),
                                  .lengths = cached.keys.lengths.to(device),
                                  .max_length = cached.keys.max_length};
            const SdpaInputs inputs{.query = in[0],
                                    .key = in[1],
                                    .value = in[2],
                                    .sinks = has_sinks ? std::optional(in[3]) : std::nullopt,
                                    .packed = packed,
                                    .packed_keys = keys};
            return device.is_cuda() && dtype != at::kDouble ? fused_attention(inputs, each.options, GetParam()).out
                                                            : eager_attention(inputs, each.options).out;
          };
          // The CPU gets the rounded values.
          Tensors rounded;
          for (const auto& x : cached.inputs) rounded.push_back(x.to(at::kDouble));
          const at::Tensor out = run(on_gpu(cached.inputs), at::kCUDA).cpu();
          EXPECT_TRUE(is_near(out, run(rounded, at::kCPU)))
              << each.name << " " << dtype << " sinks " << has_sinks << " sequences " << num_keys.size();
        }
      }
    }
  }
}

// Keys that ranks have gathered: of each sequence all up to its queries, with gradients.
TEST_P(FusedAttentionCuda, Equals_eager_for_packed_keys_that_fill_their_rooms) {
  for (const auto& [lengths, key_lengths] : attention_testing::kGatheredLengths) {
    for (Case each : bands()) {
      each.lengths = lengths;
      each.key_lengths = key_lengths;
      for (const bool has_sinks : {false, true}) {
        each.has_sinks = has_sinks;
        const auto what = [&] { return cat(each.name, " of ", lengths.size(), " sequences, sinks ", has_sinks); };
        EXPECT_EQ(error_of(each, GetParam()), "") << what();
        EXPECT_EQ(attention_testing::error_against_eager(each, at::kHalf, eager_attention), "") << what() << " eager";
      }
    }
  }
}

// As a block of keys has them: of most documents few, or none, whose queries see nothing.
TEST_P(FusedAttentionCuda, Equals_eager_for_sequences_with_fewer_packed_keys_than_queries) {
  for (const auto& [lengths, key_lengths] : std::vector<std::pair<std::vector<int>, std::vector<int>>>{
           {{100, 0, 28}, {0, 40, 20}}, {{1, 200, 3}, {70, 0, 1}}, {{64}, {33}}, {{0, 9}, {300, 0}}}) {
    for (const std::int64_t num_features : {64, 128, 192}) {
      for (const bool has_sinks : {false, true}) {
        const Case each{.lengths = lengths,
                        .key_lengths = key_lengths,
                        .has_sinks = has_sinks,
                        .returns_logsumexp = has_sinks,  // that of a query that sees nothing is finite then
                        .num_features = num_features};
        EXPECT_EQ(error_of(each, GetParam()), "") << lengths.size() << " sequences, sinks " << has_sinks;
      }
    }
  }
}

TEST_P(FusedAttentionCuda, Equals_eager_for_packed_keys_of_all_head_dims_and_counts) {
  for (const std::int64_t num_features : {8, 64, 96, 128, 192}) {
    for (const auto& [num_heads, num_kv_heads] : std::vector<std::pair<int, int>>{{4, 2}, {8, 1}, {3, 3}}) {
      const Case each{.options = {.causal = true},
                      .lengths = {0, 100, 28},
                      .key_lengths = {40, 300, 28},
                      .num_heads = num_heads,
                      .num_kv_heads = num_kv_heads,
                      .num_features = num_features};
      EXPECT_EQ(error_of(each, GetParam(), at::kHalf), "") << num_features << " " << num_heads << " " << num_kv_heads;
    }
  }
}

TEST_P(FusedAttentionCuda, To_packed_keys_returns_the_logsumexp_and_takes_its_gradient) {
  for (Case each : bands()) {
    each.lengths = {0, 100, 28};
    each.key_lengths = {40, 300, 28};
    each.returns_logsumexp = true;
    each.has_sinks = each.options.causal;
    EXPECT_EQ(error_of(each, GetParam()), "") << each.name;
  }
}

// As a chunk of 32k positions has them.
TEST_P(FusedAttentionCuda, Equals_eager_for_long_packed_keys) {
  const Case each{.options = {.causal = true},
                  .lengths = {0, 1500, 500, 0},
                  .key_lengths = {700, 4000, 500, 0},
                  .num_features = 128};
  EXPECT_EQ(error_of(each, GetParam()), "");
}

TEST_P(FusedAttentionCuda, Takes_no_gradients_of_keys_that_do_not_fill_their_rooms) {
  const auto cached = attention_testing::cached_sequences({2, 1}, {3, 2}, at::kBFloat16);
  const Tensors in = on_gpu(cached.inputs);
  const at::Tensor query = ::d9d::testing::leaf(in[0]);
  const SdpaInputs inputs{
      .query = query,
      .key = in[1],
      .value = in[2],
      .packed = PackedSequences{.cu_seqlens = cached.packed.cu_seqlens.cuda(), .max_length = 2},
      .packed_keys = PackedKeys{
          .cu_seqlens = cached.keys.cu_seqlens.cuda(), .lengths = cached.keys.lengths.cuda(), .max_length = 3}};
  EXPECT_THROW((void)fused_attention(inputs, {.causal = true}, GetParam()), ConfigError);
}

TEST_P(FusedAttentionCuda, Runs_on_eager_where_a_query_sees_no_key) {
  const Case beyond{.options = {.window_left = 10, .first_query = 180}, .num_queries = 60};
  EXPECT_EQ(error_of(beyond, GetParam()), "");
  const Case all_beyond{.options = {.window_left = 10, .first_query = 300}, .has_sinks = true, .num_queries = 60};
  EXPECT_EQ(error_of(all_beyond, GetParam()), "");
}

TEST_P(FusedAttentionCuda, Takes_views_of_a_fused_projection_and_unaligned_ones) {
  for (const auto& lengths : {std::vector<int>{}, std::vector<int>{30, 70}}) {
    for (const std::int64_t offset : {0, 1}) {
      const auto run = [&](const auto& core, at::Device device) {
        return [&, device](const Tensors& in) {
          const auto qkv = in[0].narrow(0, offset, 100 * 512).view({1, 100, 8, 64});
          const auto query = qkv.narrow(2, 0, 4), key = qkv.narrow(2, 4, 2), value = qkv.narrow(2, 6, 2);
          const SdpaInputs inputs{.query = query, .key = key, .value = value, .packed = packed_of(lengths, device)};
          return Tensors{core(inputs, SdpaOptions{.causal = true}).out};
        };
      };
      const auto fused = [](const SdpaInputs& inputs, const SdpaOptions& options) {
        return fused_attention(inputs, options, GetParam());
      };
      const auto flat = values({100 * 512 + 1}, 1, at::kBFloat16);
      const auto actual = outputs_and_gradients(run(fused, at::kCUDA), {flat.cuda()});
      const auto exact = outputs_and_gradients(run(eager_attention, at::kCPU), {flat.to(at::kDouble)});
      for (std::size_t i = 0; i < exact.size(); ++i) {
        EXPECT_TRUE(is_near(actual[i].cpu(), exact[i])) << lengths.size() << " packed, " << offset << " " << i;
      }
    }
  }
}

// Includes sequences whose rows have a large pitch, as in a batch of a fused projection.
TEST_P(FusedAttentionCuda, Takes_batches_of_views_of_a_fused_projection) {
  const auto run = [&](const auto& core) {
    return [&](const Tensors& in) {
      const auto query = in[0].narrow(2, 0, 4), key = in[0].narrow(2, 4, 2), value = in[0].narrow(2, 6, 2);
      return Tensors{core(SdpaInputs{.query = query, .key = key, .value = value}, SdpaOptions{.causal = true}).out};
    };
  };
  const auto fused = [](const SdpaInputs& inputs, const SdpaOptions& options) {
    return fused_attention(inputs, options, GetParam());
  };
  const auto qkv = values({3, 200, 8, 64}, 1, at::kBFloat16);
  const auto actual = outputs_and_gradients(run(fused), {qkv.cuda()});
  const auto exact = outputs_and_gradients(run(eager_attention), {qkv.to(at::kDouble)});
  for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_TRUE(is_near(actual[i].cpu(), exact[i])) << i;
}

TEST_P(FusedAttentionCuda, Computes_only_the_gradients_asked_for) {
  const Case each{.options = {.causal = true}, .has_sinks = true};
  const Tensors inputs = on_gpu(inputs_of(each, at::kBFloat16));
  const auto sinks = ::d9d::testing::leaf(inputs[3]);
  const auto out = fused_attention({.query = inputs[0], .key = inputs[1], .value = inputs[2], .sinks = sinks},
                                   each.options, GetParam())
                       .out;
  ::d9d::testing::backward({out}, {at::ones_like(out)});
  EXPECT_TRUE(sinks.grad().isfinite().all().item<bool>());
  EXPECT_GT(sinks.grad().abs().max().item<double>(), 0);
}

// The last queries of a long sequence, or of a long pack, whose windows begin behind kFirst. Values are columns of a
// projection, whose rows are even longer.
TEST_P(FusedAttentionCuda, Counts_more_than_two_to_the_31_elements) {
  constexpr std::int64_t kFirst = 1 << 18, kLast = 300, kWindow = 100;
  const Case last{.options = {.causal = true, .window_left = kWindow},
                  .has_sinks = true,
                  .num_heads = 64,
                  .num_kv_heads = 2,
                  .num_features = 128,
                  .batch = 1,
                  .num_queries = kLast,
                  .num_keys = kLast};
  const auto fused = [](const SdpaInputs& inputs, const SdpaOptions& options) {
    return fused_attention(inputs, options, GetParam());
  };
  for (const bool is_packed : {false, true}) {
    const bool fits = ::d9d::testing::fits_into_memory([&] {
      const Tensors tails = on_gpu(inputs_of(last, at::kBFloat16));
      const auto longer = [&](const at::Tensor& tail, std::int64_t columns_before) {
        const at::Tensor rows = at::ones({1, kFirst + kLast, columns_before + tail.size(2) * 128}, tail.options());
        const at::Tensor heads = rows.narrow(2, columns_before, tail.size(2) * 128).unflatten(2, {-1, 128});
        heads.narrow(1, kFirst, kLast).copy_(tail);
        return heads.detach().requires_grad_();
      };
      const at::Tensor query = longer(tails[0], 0), key = longer(tails[1], 0), value = longer(tails[2], 66 * 128);
      SdpaInputs inputs{.query = query, .key = key, .value = value, .sinks = tails[3]};
      if (is_packed) inputs.packed = packed_of({kFirst, kLast}, at::kCUDA);
      const at::Tensor out = fused(inputs, last.options).out;
      // Gradients arrive at queries whose windows have only keys of the tails.
      const auto grad = ::d9d::testing::device_values(tails[0].sizes(), 5, at::kBFloat16);
      grad.narrow(1, 0, kWindow).zero_();
      const auto all_grads = at::zeros_like(out);
      all_grads.narrow(1, kFirst, kLast).copy_(grad);
      const auto actual = torch::autograd::grad({out}, {query, key, value}, {all_grads});

      Tensors leaves;
      for (std::size_t i = 0; i < 3; ++i) leaves.push_back(::d9d::testing::leaf(tails[i]));
      const at::Tensor expected =
          fused({.query = leaves[0], .key = leaves[1], .value = leaves[2], .sinks = tails[3]}, last.options).out;
      const auto expected_grads = torch::autograd::grad({expected}, leaves, {grad});
      constexpr std::int64_t kSame = kLast - kWindow;
      EXPECT_TRUE(is_near(out.narrow(1, kFirst + kWindow, kSame), expected.narrow(1, kWindow, kSame))) << is_packed;
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(is_near(actual[i].narrow(1, kFirst, kLast), expected_grads[i]))
            << "gradient " << i << (is_packed ? ", packed" : "");
        EXPECT_EQ(actual[i].narrow(1, 0, kFirst).abs().max().item<double>(), 0) << i;
      }
    });
    if (!fits) GTEST_SKIP() << "the device has too little memory";
  }
}

TEST_P(FusedAttentionCuda, Refuses_two_to_the_31_elements_of_queries_that_read_one_head_of_keys) {
  const bool fits = ::d9d::testing::fits_into_memory([] {
    const at::Tensor query = at::zeros({1, 1 << 18, 64, 128}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
    const at::Tensor key = query.narrow(2, 0, 1);
    const SdpaInputs inputs{.query = query, .key = key, .value = key};
    EXPECT_THROW((void)fused_attention(inputs, {.causal = true, .window_left = 100}, GetParam()), ConfigError);
  });
  if (!fits) GTEST_SKIP() << "the device has too little memory";
}

TEST_P(FusedAttentionCuda, Does_not_wait_for_the_device) {
  using Lengths = std::vector<int>;
  for (const auto& [lengths, key_lengths] :
       std::vector<std::pair<Lengths, Lengths>>{{{}, {}}, {{64, 128, 32}, {}}, {{0, 128, 32}, {64, 300, 32}}}) {
    const Case each{.options = {.causal = true, .window_left = 40},
                    .lengths = lengths,
                    .key_lengths = key_lengths,
                    .has_sinks = true};
    const Tensors inputs = on_gpu(inputs_of(each, at::kBFloat16));
    const auto packed = packed_of(lengths, at::kCUDA), keys = packed_of(key_lengths, at::kCUDA);
    Tensors leaves;
    for (const auto& input : inputs) leaves.push_back(::d9d::testing::leaf(input));
    EXPECT_FALSE(test::waits_for_device([&] {
      SdpaInputs all{.query = leaves[0], .key = leaves[1], .value = leaves[2], .sinks = leaves[3], .packed = packed};
      if (keys) all.packed_keys = PackedKeys{keys->cu_seqlens, {}, keys->max_length};
      const auto out = fused_attention(all, each.options, GetParam()).out;
      ::d9d::testing::backward({out}, {at::zeros_like(out)});
    })) << lengths.size()
        << " " << key_lengths.size();
  }
}

class CudnnAttentionCuda : public ::d9d::testing::CudaTest {
 protected:
  // Values that follow `count` other columns, and separate queries and keys: [3, 200, 4 or 2 heads, 64].
  [[nodiscard]] static Tensors leaves_with_values_behind(std::int64_t count) {
    const auto rows = ::d9d::testing::device_values({3, 200, count + 4 * 64}, 3, at::kBFloat16);  // some are behind
    const auto leaf = [](std::int64_t heads, std::uint64_t seed) {
      return ::d9d::testing::leaf(::d9d::testing::device_values({3, 200, heads, 64}, seed, at::kBFloat16));
    };
    return {leaf(4, 1), leaf(2, 2), rows.narrow(-1, count, 2 * 64).unflatten(-1, {2, 64}).requires_grad_()};
  }
};

TEST_F(CudnnAttentionCuda, Leaves_room_before_the_gradient_of_values_behind_queries_and_keys) {
  for (const std::int64_t count : {0, 64, 6 * 64}) {
    const bool has_room = count == 6 * 64;
    const Tensors leaves = leaves_with_values_behind(count);
    const auto run = [&](const auto& core, const Tensors& in) {
      const at::Tensor out =
          core(SdpaInputs{.query = in[0], .key = in[1], .value = in[2]}, SdpaOptions{.causal = true}).out;
      const auto grad = ::d9d::testing::device_values(out.sizes(), 4, at::kBFloat16).to(out.scalar_type());
      return torch::autograd::grad({out}, in, {grad});
    };
    const auto fused = [](const SdpaInputs& inputs, const SdpaOptions& options) {
      return fused_attention(inputs, options, FusedSdpaKernel::kCudnn);
    };
    const Tensors actual = run(fused, leaves);
    EXPECT_EQ(actual[2].stride(1), (has_room ? 8 : 2) * 64) << count;
    EXPECT_EQ(actual[2].storage_offset(), has_room ? count : 0);
    EXPECT_EQ(actual[2].storage().nbytes(), 3 * 200 * static_cast<std::size_t>(actual[2].stride(1)) * 2);
    EXPECT_EQ(actual[2].storage().use_count(), 1U) << count;
    EXPECT_TRUE(actual[0].is_contiguous() && actual[1].is_contiguous());
    Tensors exact_leaves;
    for (const at::Tensor& each : leaves) exact_leaves.push_back(::d9d::testing::leaf(each.detach().to(at::kDouble)));
    const Tensors exact = run(eager_attention, exact_leaves);
    for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_TRUE(is_near(actual[i], exact[i])) << count << " " << i;
  }
}

TEST_F(CudnnAttentionCuda, Gives_packed_values_a_contiguous_gradient) {
  const auto qkv = ::d9d::testing::device_values({1, 224, 8, 64}, 1, at::kBFloat16);
  const Tensors leaves = {qkv.narrow(2, 0, 4).requires_grad_(), qkv.narrow(2, 4, 2).requires_grad_(),
                          qkv.narrow(2, 6, 2).requires_grad_()};
  const SdpaInputs inputs{
      .query = leaves[0], .key = leaves[1], .value = leaves[2], .packed = packed_of({64, 128, 32}, at::kCUDA)};
  const auto out = fused_attention(inputs, {.causal = true}, FusedSdpaKernel::kCudnn).out;
  EXPECT_TRUE(torch::autograd::grad({out}, leaves, {at::ones_like(out)})[2].is_contiguous());
}

TEST_F(CudnnAttentionCuda, Equals_eager_with_a_softcap) {
  for (const auto& options : std::vector<SdpaOptions>{{}, {.causal = true}, {.causal = true, .window_left = 40}}) {
    Case each{.options = options, .has_sinks = options.causal};
    each.options.softcap = 2.0;
    EXPECT_EQ(error_of(each, FusedSdpaKernel::kCudnn), "") << options.causal;
    each.lengths = {64, 128, 32};
    EXPECT_EQ(error_of(each, FusedSdpaKernel::kCudnn), "") << options.causal << " packed";
    each.lengths = {0, 128, 32};
    each.key_lengths = {64, 300, 32};
    EXPECT_EQ(error_of(each, FusedSdpaKernel::kCudnn), "") << options.causal << " packed keys";
  }
}

// A kernel for whole rows that had no limits would read beyond the band.
TEST_F(CudnnAttentionCuda, Equals_eager_for_long_rows) {
  const Case window{.options = {.causal = true, .window_left = 1023},
                    .num_features = 128,
                    .batch = 1,
                    .num_queries = 3000,
                    .num_keys = 3000};
  EXPECT_EQ(error_of(window, FusedSdpaKernel::kCudnn), "");
  const Case packed{.options = {.causal = true}, .lengths = {1500, 3, 900, 0, 700}, .num_features = 128};
  EXPECT_EQ(error_of(packed, FusedSdpaKernel::kCudnn), "");
}

}  // namespace
}  // namespace d9d::kernels::fused_attention_cuda_test
