// rms_norm forward and backward against the same formula as ATen operators through autograd.
#include "d9d/kernels/rms_norm/rms_norm.h"

#include <benchmark/benchmark.h>

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

}  // namespace
