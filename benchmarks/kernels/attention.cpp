// Attention: the core that scaled_dot_product_attention() chooses, against cuDNN's graphs, FlashAttention-2 and
// LibTorch's calls, with causality, windows, packed sequences and sinks.
#include <algorithm>
#include <numeric>

#include <benchmark/benchmark.h>

#include "d9d/kernels/attention/scaled_dot_product_attention.h"

#include "benchmarks/kernels/device_inputs.h"

namespace {

namespace kernels = d9d::kernels;
using d9d::benchmarks::NamedOperator;
using d9d::benchmarks::Tensors;

at::Tensor chosen(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  return kernels::scaled_dot_product_attention({.query = query, .key = key, .value = value}, {.causal = true});
}

at::Tensor eager(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  return kernels::eager_attention({.query = query, .key = key, .value = value}, {.causal = true}).out;
}

void forward_backward(benchmark::State& state, decltype(&chosen) op) {
  const auto heads = [&](std::int64_t num_heads) {
    return at::randn({1, state.range(0), num_heads, 64}).requires_grad_();
  };
  const at::Tensor query = heads(4), key = heads(2), value = heads(2);
  const at::Tensor grad = at::ones_like(query);
  for (auto _ : state) torch::autograd::grad({op(query, key, value)}, {query, key, value}, {grad});
}

BENCHMARK_CAPTURE(forward_backward, chosen, chosen)->Arg(512)->Arg(2048);
BENCHMARK_CAPTURE(forward_backward, eager, eager)->Arg(512)->Arg(2048);

struct DeviceShape {
  std::string name;
  std::int64_t batch, sequence, num_heads, num_kv_heads, num_features;
  kernels::SdpaOptions options = {.causal = true};
  std::vector<int> lengths = {};  // of packed sequences
  bool has_sinks = false;
};

// The number of pairs of a query and a key that it sees, for one head.
double num_pairs(const DeviceShape& shape) {
  const auto of_one = [&](std::int64_t length) {
    double pairs = 0;
    for (std::int64_t i = 0; i < length; ++i)
      pairs += static_cast<double>(std::min(i, shape.options.window_left.value_or(length)) + 1);
    return pairs;
  };
  if (shape.lengths.empty()) return static_cast<double>(shape.batch) * of_one(shape.sequence);
  double pairs = 0;
  for (const int length : shape.lengths) pairs += of_one(length);
  return pairs;
}

// Operations: two matrix products in forward, five in backward (one recomputes the weights).
void measure_attention(d9d::benchmarks::DeviceTable& table, const DeviceShape& shape) {
  const double product =
      2 * num_pairs(shape) * static_cast<double>(shape.num_heads) * static_cast<double>(shape.num_features);
  const double heads_bytes = static_cast<double>(shape.batch * shape.sequence * shape.num_features * 2);
  const auto q = static_cast<double>(shape.num_heads), kv = static_cast<double>(shape.num_kv_heads);
  std::optional<d9d::PackedSequences> packed;
  if (!shape.lengths.empty()) {
    std::vector<int> ends(shape.lengths.size() + 1);
    std::partial_sum(shape.lengths.begin(), shape.lengths.end(), ends.begin() + 1);
    packed = {.cu_seqlens = at::tensor(ends, at::kInt).to(table.device().device()),
              .max_length = *std::max_element(shape.lengths.begin(), shape.lengths.end())};
  }
  const auto make_inputs = [&] {
    const auto heads = [&](std::int64_t num_heads) {
      return at::randn({shape.batch, shape.sequence, num_heads, shape.num_features},
                       table.device().dtype(at::kBFloat16))
          .requires_grad_();
    };
    Tensors inputs = {heads(shape.num_heads), heads(shape.num_kv_heads), heads(shape.num_kv_heads)};
    if (shape.has_sinks) inputs.push_back(at::randn({shape.num_heads}, table.device()).requires_grad_());
    return inputs;
  };
  const auto with = [&](auto core) {
    return [&, core](const Tensors& in) {
      return Tensors{core(kernels::SdpaInputs{.query = in[0],
                                              .key = in[1],
                                              .value = in[2],
                                              .sinks = shape.has_sinks ? std::optional(in[3]) : std::nullopt,
                                              .packed = packed})};
    };
  };
  const auto fused = [&](kernels::FusedSdpaKernel kernel) {
    return with([&, kernel](const auto& in) { return kernels::fused_attention(in, shape.options, kernel).out; });
  };
  std::vector<NamedOperator> implementations = {
      {"chosen", with([&](const auto& in) { return kernels::scaled_dot_product_attention(in, shape.options); })},
      {"cuDNN, our graph", fused(kernels::FusedSdpaKernel::kCudnn)}};
  if (!shape.options.softcap) implementations.push_back({"FlashAttention-2", fused(kernels::FusedSdpaKernel::kFlash)});
  if (!shape.has_sinks && !packed && !shape.options.window_left && !shape.options.softcap) {
    const auto torch = [&](d9d::TorchSdpaKernel kernel) {
      return with([&, kernel](const auto& in) { return kernels::torch_attention(in, shape.options, {kernel}); });
    };
    implementations.push_back({"ATen cuDNN", torch(d9d::TorchSdpaKernel::kCudnn)});
    implementations.push_back({"ATen flash", torch(d9d::TorchSdpaKernel::kFlash)});
  }
  measure_forward_and_backward(
      table, {.operation = "attention",
              .shape = d9d::cat(shape.name, " ", shape.batch, " x ", shape.sequence, " x (", shape.num_heads, " + ",
                                shape.num_kv_heads, ") x ", shape.num_features),
              .forward_bytes = heads_bytes * (2 * q + 2 * kv),
              .backward_bytes = heads_bytes * (4 * q + 4 * kv),
              .forward_flop = 2 * product,
              .backward_flop = 5 * product,
              .make_inputs = make_inputs,
              .implementations = implementations});
}

const bool kAdded = d9d::benchmarks::add_device_benchmark("attention", [](auto& table) {
  measure_attention(table, {"causal", 2, 8192, 16, 8, 128});
  measure_attention(table, {"causal", 2, 4096, 16, 8, 128});
  measure_attention(table, {"window 1024", 2, 8192, 16, 8, 128, {.causal = true, .window_left = 1023}});
  measure_attention(table,
                    {"packed", 1, 16384, 16, 8, 128, {.causal = true}, {8192, 4096, 2048, 1024, 512, 300, 200, 12}});
  measure_attention(table, {"packed", 1, 16384, 16, 8, 128, {.causal = true}, std::vector<int>(32, 512)});
  measure_attention(table, {"window 128, sinks", 1, 8192, 64, 8, 64, {.causal = true, .window_left = 127}, {}, true});
  measure_attention(table, {"sinks", 1, 8192, 64, 8, 64, {.causal = true}, {}, true});
});

}  // namespace
