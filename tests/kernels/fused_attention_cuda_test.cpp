// The fused kernels of a GPU against eager attention in fp64, one call a packed sequence.
#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/kernels/attention/scaled_dot_product_attention.h"

#include "tests/kernels/cuda_testing.h"
#include "tests/support/device.h"
#include "tests/support/tolerances.h"

namespace d9d::kernels {
namespace {

using ::d9d::testing::outputs_and_gradients;
using ::d9d::testing::same_bits;
using ::d9d::testing::values;
using Tensors = std::vector<at::Tensor>;

struct Case {
  std::string name;
  SdpaOptions options = {};
  std::vector<int> lengths = {};  // of packed sequences; empty: dense
  bool has_sinks = false;
  bool returns_logsumexp = false;
  std::int64_t num_heads = 4, num_kv_heads = 2, num_features = 64;
  std::int64_t batch = 2, num_queries = 203, num_keys = 203;
};

std::optional<PackedSequences> packed_of(const std::vector<int>& lengths, at::Device device) {
  if (lengths.empty()) return std::nullopt;
  const auto ends = at::cumsum(at::tensor(lengths, at::kInt), 0, at::kInt);
  return PackedSequences{.cu_seqlens = at::cat({at::zeros({1}, at::kInt), ends}).to(device),
                         .max_length = *std::max_element(lengths.begin(), lengths.end())};
}

Tensors inputs_of(const Case& each, at::ScalarType dtype) {
  const std::int64_t total = std::accumulate(each.lengths.begin(), each.lengths.end(), std::int64_t{0});
  const bool is_packed = !each.lengths.empty();
  const std::int64_t batch = is_packed ? 1 : each.batch;
  const std::int64_t num_queries = is_packed ? total : each.num_queries, num_keys = is_packed ? total : each.num_keys;
  Tensors inputs = {values({batch, num_queries, each.num_heads, each.num_features}, 1, dtype),
                    values({batch, num_keys, each.num_kv_heads, each.num_features}, 2, dtype),
                    values({batch, num_keys, each.num_kv_heads, each.num_features}, 3, dtype)};
  if (each.has_sinks) inputs.push_back(values({each.num_heads}, 4, at::kFloat));
  return inputs;
}

template <class Core>
testing::TensorFunction function_of(const Case& each, const Core& core) {
  return [&each, core](const Tensors& in) {
    const SdpaInputs inputs{.query = in[0],
                            .key = in[1],
                            .value = in[2],
                            .sinks = each.has_sinks ? std::optional(in[3]) : std::nullopt,
                            .packed = packed_of(each.lengths, in[0].device())};
    const SdpaOutput result = core(inputs, each.options);
    return each.returns_logsumexp ? Tensors{result.out, result.logsumexp} : Tensors{result.out};
  };
}

// Each sequence alone.
SdpaOutput eager_of_each(const std::vector<int>& lengths, const SdpaInputs& inputs, const SdpaOptions& options) {
  if (lengths.empty()) return eager_attention(inputs, options);
  Tensors outs, logsumexps;
  std::int64_t begin = 0;
  for (const int length : lengths) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, begin, length); };
    const auto query = part(inputs.query), key = part(inputs.key), value = part(inputs.value);
    const auto [out, logsumexp] =
        eager_attention({.query = query, .key = key, .value = value, .sinks = inputs.sinks}, options);
    outs.push_back(out);
    logsumexps.push_back(logsumexp);
    begin += length;
  }
  return {.out = at::cat(outs, 1), .logsumexp = at::cat(logsumexps, 2)};
}

Tensors on_gpu(const Tensors& tensors) {
  Tensors result;
  for (const auto& each : tensors) result.push_back(each.to(at::kCUDA));
  return result;
}

// Names the first result that is too far from eager in fp64, in the L2 norm; empty: none.
template <class Core>
std::string error_against_eager(const Case& each, at::ScalarType dtype, const Core& core) {
  const Tensors inputs = inputs_of(each, dtype);
  Tensors actual;
  try {
    actual = outputs_and_gradients(function_of(each, core), on_gpu(inputs));
  } catch (const std::exception& error) {
    return std::string(error.what()).substr(0, 600);
  }
  const auto reference = [&](const SdpaInputs& all, const SdpaOptions& options) {
    return eager_of_each(each.lengths, all, options);
  };
  Tensors wide;
  for (const auto& input : inputs) wide.push_back(input.to(at::kCUDA, at::kDouble));
  const Tensors exact = outputs_and_gradients(function_of(each, reference), wide);
  const double allowed = test::tolerance(dtype == at::kHalf ? "half attention" : "bf16 attention").value;
  std::string worst;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (!actual[i].defined() || actual[i].sizes() != exact[i].sizes()) return cat("result ", i, ": missing");
    const double scale = std::max(exact[i].norm().item<double>(), 1.0);  // a query that sees one key has no gradient
    const double error = (actual[i].to(at::kDouble) - exact[i]).norm().item<double>() / scale;
    if (!(error <= allowed)) worst += cat("result ", i, ": relative error ", error, "; ");
  }
  return worst;
}

std::string error_of(const Case& each, FusedSdpaKernel kernel, at::ScalarType dtype = at::kBFloat16) {
  return error_against_eager(each, dtype, [kernel](const SdpaInputs& inputs, const SdpaOptions& options) {
    return fused_attention(inputs, options, kernel);
  });
}

std::vector<Case> bands() {
  return {{.name = "full"},
          {.name = "causal", .options = {.causal = true}},
          {.name = "causal_window", .options = {.causal = true, .window_left = 40}},
          {.name = "itself", .options = {.causal = true, .window_left = 0}},
          {.name = "window_both_ways", .options = {.window_left = 20, .window_right = 10}},
          {.name = "window_left", .options = {.window_left = 33}},
          {.name = "window_right", .options = {.window_right = 33}},
          {.name = "causal_wide_window", .options = {.causal = true, .window_left = 1000}}};
}

class FusedAttentionCuda : public testing::CudaTest, public ::testing::WithParamInterface<FusedSdpaKernel> {};
INSTANTIATE_TEST_SUITE_P(With, FusedAttentionCuda, ::testing::Values(FusedSdpaKernel::kCudnn, FusedSdpaKernel::kFlash),
                         [](const auto& kernel) {
                           return kernel.param == FusedSdpaKernel::kCudnn ? "cudnn" : "flash";
                         });

// cuDNN takes tenths of a second for the first plan of a kernel: few combinations of shapes and options.
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

TEST_P(FusedAttentionCuda, Runs_on_eager_where_a_query_sees_no_key) {
  const Case beyond{.options = {.window_left = 10, .first_query = 180}, .num_queries = 60};
  EXPECT_EQ(error_of(beyond, GetParam()), "");
  const Case all_beyond{.options = {.window_left = 10, .first_query = 300}, .has_sinks = true, .num_queries = 60};
  EXPECT_EQ(error_of(all_beyond, GetParam()), "");
}

TEST_P(FusedAttentionCuda, Takes_views_of_a_fused_projection_and_unaligned_ones) {
  for (const std::int64_t offset : {0, 1}) {
    const auto run = [&](const auto& core, at::Device device) {
      return [&, device](const Tensors& in) {
        const auto qkv = in[0].narrow(0, offset, 100 * 512).view({1, 100, 8, 64});
        const auto query = qkv.narrow(2, 0, 4), key = qkv.narrow(2, 4, 2), value = qkv.narrow(2, 6, 2);
        const SdpaInputs inputs{.query = query, .key = key, .value = value, .packed = packed_of({30, 70}, device)};
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
      const double error = (actual[i].to(at::kDouble).cpu() - exact[i]).norm().item<double>();
      EXPECT_LE(error, test::tolerance("bf16 attention").value * exact[i].norm().item<double>()) << offset << " " << i;
    }
  }
}

TEST_P(FusedAttentionCuda, Computes_only_the_gradients_asked_for) {
  const Case each{.options = {.causal = true}, .has_sinks = true};
  const Tensors inputs = on_gpu(inputs_of(each, at::kBFloat16));
  const auto sinks = testing::leaf(inputs[3]);
  const auto out = fused_attention({.query = inputs[0], .key = inputs[1], .value = inputs[2], .sinks = sinks},
                                   each.options, GetParam())
                       .out;
  testing::backward({out}, {at::ones_like(out)});
  EXPECT_TRUE(sinks.grad().isfinite().all().item<bool>());
  EXPECT_GT(sinks.grad().abs().max().item<double>(), 0);
}

TEST_P(FusedAttentionCuda, Does_not_wait_for_the_device) {
  for (const auto& lengths : {std::vector<int>{}, std::vector<int>{64, 128, 32}}) {
    const Case each{.options = {.causal = true, .window_left = 40}, .lengths = lengths, .has_sinks = true};
    const Tensors inputs = on_gpu(inputs_of(each, at::kBFloat16));
    const auto packed = packed_of(lengths, at::kCUDA);
    Tensors leaves;
    for (const auto& input : inputs) leaves.push_back(testing::leaf(input));
    EXPECT_FALSE(test::waits_for_device([&] {
      const SdpaInputs all{
          .query = leaves[0], .key = leaves[1], .value = leaves[2], .sinks = leaves[3], .packed = packed};
      const auto out = fused_attention(all, each.options, GetParam()).out;
      testing::backward({out}, {at::zeros_like(out)});
    })) << lengths.size();
  }
}

class SdpaCuda : public testing::CudaTest {};

// Process-wide, as launch.deterministic sets it.
class Deterministic {
 public:
  Deterministic() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false); }
  ~Deterministic() { at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false); }
};

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

class CudnnAttentionCuda : public testing::CudaTest {};

TEST_F(CudnnAttentionCuda, Equals_eager_with_a_softcap) {
  for (const auto& options : std::vector<SdpaOptions>{{}, {.causal = true}, {.causal = true, .window_left = 40}}) {
    Case each{.options = options, .has_sinks = options.causal};
    each.options.softcap = 2.0;
    EXPECT_EQ(error_of(each, FusedSdpaKernel::kCudnn), "") << options.causal;
    each.lengths = {64, 128, 32};
    EXPECT_EQ(error_of(each, FusedSdpaKernel::kCudnn), "") << options.causal << " packed";
  }
}

// Without limits of its own a kernel for whole rows would read beyond the band.
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
    for (const auto& input : on_gpu(inputs_of(each, at::kBFloat16))) leaves.push_back(testing::leaf(input));
    const auto out =
        torch_attention({.query = leaves[0], .key = leaves[1], .value = leaves[2], .mask = keep}, {}, kernels);
    const int name = kernels.empty() ? -1 : static_cast<int>(kernels[0]);
    EXPECT_EQ(out.select(1, 3).abs().max().item<double>(), 0) << name;
    EXPECT_EQ(out.select(1, 100).abs().max().item<double>(), 0) << name;
    testing::backward({out}, {at::ones_like(out)});
    EXPECT_EQ(leaves[0].grad().select(1, 3).abs().max().item<double>(), 0) << name;
    for (const auto& leaf : leaves) EXPECT_TRUE(leaf.grad().isfinite().all().item<bool>()) << name;
  }
}

TEST_F(SdpaCuda, Picks_the_fastest_core_for_the_device) {
  const auto query = at::empty({1, 8, 4, 64}, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
  const auto backend = [&](const SdpaNeeds& needs) {
    return resolve_sdpa({.needs = needs, .device = sdpa_device_of(query)}).backend;
  };
  EXPECT_EQ(backend({}), SdpaBackend::kTorch);
  EXPECT_EQ(backend({.sinks = true}), SdpaBackend::kCudnn);
  EXPECT_EQ(backend({.window = true}), SdpaBackend::kCudnn);
  const Deterministic deterministic;
  EXPECT_EQ(backend({}), SdpaBackend::kFlash);
}

}  // namespace
}  // namespace d9d::kernels
