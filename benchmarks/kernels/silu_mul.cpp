// silu_mul forward and backward against at::silu and a product through autograd.
#include "d9d/kernels/silu_mul/silu_mul.h"

#include <benchmark/benchmark.h>

#include "benchmarks/kernels/device_inputs.h"

namespace {

using Op = at::Tensor (*)(const at::Tensor& gate, const at::Tensor& up);

at::Tensor composition(const at::Tensor& gate, const at::Tensor& up) { return at::silu(gate) * up; }

void forward_backward(benchmark::State& state, Op op, at::ScalarType dtype) {
  const at::Tensor gate = at::ones({state.range(0)}, dtype).requires_grad_();
  const at::Tensor up = at::ones({state.range(0)}, dtype).requires_grad_();
  const at::Tensor grad = at::ones_like(gate);
  for (auto _ : state) torch::autograd::grad({op(gate, up)}, {gate, up}, {grad});
  state.SetBytesProcessed(state.iterations() * gate.numel() * gate.element_size() * 8);
}

BENCHMARK_CAPTURE(forward_backward, ours_fp32, d9d::kernels::silu_mul, at::kFloat)->Arg(1 << 20);
BENCHMARK_CAPTURE(forward_backward, composition_fp32, composition, at::kFloat)->Arg(1 << 20);
BENCHMARK_CAPTURE(forward_backward, ours_bf16, d9d::kernels::silu_mul, at::kBFloat16)->Arg(1 << 20);
BENCHMARK_CAPTURE(forward_backward, composition_bf16, composition, at::kBFloat16)->Arg(1 << 20);

using d9d::benchmarks::Tensors;

// Bytes that must be moved: forward, gate, up and out; backward, gate, up and three gradients. `is_fused`: gate and up
// are halves of one tensor.
void measure_gate(d9d::benchmarks::DeviceTable& table, std::int64_t num_rows, std::int64_t num_columns,
                  at::ScalarType dtype, bool is_fused) {
  const double bytes = static_cast<double>(num_rows * num_columns) * static_cast<double>(c10::elementSize(dtype));
  const auto options = table.device().dtype(dtype);
  const auto make_inputs = [=] {
    const auto halves = at::randn({num_rows, 2, num_columns}, options).unbind(1);
    const auto leaf = [&](const at::Tensor& half) {
      return (is_fused ? half : half.contiguous()).detach().requires_grad_();
    };
    return Tensors{leaf(halves[0]), leaf(halves[1])};
  };
  const auto run = [](Op op) { return [op](const Tensors& in) { return Tensors{op(in[0], in[1])}; }; };
  measure_forward_and_backward(
      table, {.operation = "silu_mul",
              .shape = d9d::cat(num_rows, " x ", num_columns, " ", dtype, is_fused ? ", halves of one" : ""),
              .forward_bytes = 3 * bytes,
              .backward_bytes = 5 * bytes,
              .make_inputs = make_inputs,
              .implementations = {{"ours", run(d9d::kernels::silu_mul)}, {"ATen", run(composition)}}});
}

const bool kAdded = d9d::benchmarks::add_device_benchmark("silu_mul", [](auto& table) {
  measure_gate(table, 8192, 6144, at::kBFloat16, false);
  measure_gate(table, 8192, 6144, at::kBFloat16, true);
  measure_gate(table, 8192, 14336, at::kBFloat16, false);
  measure_gate(table, 65536, 768, at::kBFloat16, false);
  measure_gate(table, 65536, 768, at::kBFloat16, true);
  measure_gate(table, 8192, 6144, at::kFloat, false);
});

}  // namespace
