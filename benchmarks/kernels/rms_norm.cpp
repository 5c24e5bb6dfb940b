// rms_norm forward and backward against the same formula as ATen operators through autograd.
#include "d9d/kernels/rms_norm/rms_norm.h"

#include <benchmark/benchmark.h>

#include "benchmarks/kernels/device_inputs.h"

namespace {

using Op = at::Tensor (*)(const at::Tensor& x, const at::Tensor& weight);

at::Tensor ours(const at::Tensor& x, const at::Tensor& weight) { return d9d::kernels::rms_norm(x, weight); }

at::Tensor composition(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor wide = x.to(at::kFloat);
  return (wide * (wide.square().mean(-1, true) + 1e-6).rsqrt() * weight).to(x.scalar_type());
}

void forward_backward(benchmark::State& state, Op op, at::ScalarType dtype) {
  const at::Tensor x = at::ones({2048, state.range(0)}, dtype).requires_grad_();
  const at::Tensor weight = at::ones({state.range(0)}, dtype).requires_grad_();
  const at::Tensor grad = at::ones_like(x);
  for (auto _ : state) torch::autograd::grad({op(x, weight)}, {x, weight}, {grad});
  state.SetBytesProcessed(state.iterations() * x.numel() * x.element_size() * 5);
}

BENCHMARK_CAPTURE(forward_backward, ours_fp32, ours, at::kFloat)->Arg(256)->Arg(1024)->Arg(4096);
BENCHMARK_CAPTURE(forward_backward, composition_fp32, composition, at::kFloat)->Arg(256)->Arg(1024)->Arg(4096);
BENCHMARK_CAPTURE(forward_backward, ours_bf16, ours, at::kBFloat16)->Arg(1024);
BENCHMARK_CAPTURE(forward_backward, composition_bf16, composition, at::kBFloat16)->Arg(1024);

using d9d::benchmarks::Tensors;

// Bytes that must be moved: forward, x and out; backward, x, the gradient of out and the gradient of x. Weights are
// small.
void measure_norm(d9d::benchmarks::DeviceTable& table, std::int64_t num_rows, std::int64_t num_columns,
                  at::ScalarType dtype) {
  const auto element_size = static_cast<double>(c10::elementSize(dtype));
  const double bytes = static_cast<double>(num_rows * num_columns) * element_size;
  const std::string shape = d9d::cat(num_rows, " x ", num_columns, " ", dtype);
  const auto options = table.device().dtype(dtype);
  const auto make_inputs = [=] {
    return Tensors{at::randn({num_rows, num_columns}, options).requires_grad_(),
                   at::randn({num_columns}, options).requires_grad_()};
  };
  const auto aten = [](const Tensors& in) { return Tensors{at::rms_norm(in[0], {in[0].size(-1)}, in[1], 1e-6)}; };
  measure_forward_and_backward(
      table, {.operation = "rms_norm",
              .shape = shape,
              .forward_bytes = 2 * bytes,
              .backward_bytes = 3 * bytes,
              .make_inputs = make_inputs,
              .implementations = {
                  {"ours", [](const Tensors& in) { return Tensors{ours(in[0], in[1])}; }},
                  {"ATen, fused", aten},
                  {"ATen, composed", [](const Tensors& in) { return Tensors{composition(in[0], in[1])}; }},
              }});
}

// Bytes that must be moved: forward, x, residual, sum and norm; backward, the gradients of sum and norm, the sum, and
// the gradient of x.
void measure_added_norm(d9d::benchmarks::DeviceTable& table, std::int64_t num_rows, std::int64_t num_columns) {
  const auto options = table.device().dtype(at::kBFloat16);
  const double bytes = static_cast<double>(num_rows * num_columns) * 2;
  const auto make_inputs = [=] {
    return Tensors{at::randn({num_rows, num_columns}, options).requires_grad_(),
                   at::randn({num_rows, num_columns}, options).requires_grad_(),
                   at::randn({num_columns}, options).requires_grad_()};
  };
  const auto fused = [](const Tensors& in) {
    const auto [sum, norm] = d9d::kernels::add_rms_norm(in[0], in[1], in[2]);
    return Tensors{sum, norm};
  };
  const auto composed = [](const Tensors& in) {
    const at::Tensor sum = in[0] + in[1];
    return Tensors{sum, at::rms_norm(sum, {sum.size(-1)}, in[2], 1e-6)};
  };
  measure_forward_and_backward(table, {.operation = "add_rms_norm",
                                       .shape = d9d::cat(num_rows, " x ", num_columns, " BFloat16"),
                                       .forward_bytes = 4 * bytes,
                                       .backward_bytes = 4 * bytes,
                                       .make_inputs = make_inputs,
                                       .implementations = {{"ours", fused}, {"ATen, fused", composed}}});
}

const bool kAdded = d9d::benchmarks::add_device_benchmark("rms_norm", [](auto& table) {
  for (const std::int64_t num_columns : {2048, 4096})
    for (const std::int64_t num_rows : {8192, 16384}) measure_norm(table, num_rows, num_columns, at::kBFloat16);
  measure_norm(table, 262144, 128, at::kBFloat16);
  measure_norm(table, 131072, 256, at::kBFloat16);
  measure_norm(table, 32768, 1024, at::kBFloat16);
  measure_norm(table, 8192, 7168, at::kBFloat16);
  measure_norm(table, 65536, 128, at::kBFloat16);
  measure_norm(table, 8192, 2048, at::kFloat);
  measure_norm(table, 8192, 2047, at::kBFloat16);
  measure_added_norm(table, 8192, 2048);
  measure_added_norm(table, 8192, 4096);
});

}  // namespace
