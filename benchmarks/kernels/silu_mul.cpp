// silu_mul forward and backward against at::silu and a product through autograd.
#include "d9d/kernels/silu_mul/silu_mul.h"

#include <benchmark/benchmark.h>

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

}  // namespace
