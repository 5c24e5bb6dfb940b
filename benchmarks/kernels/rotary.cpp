// apply_rotary forward and backward against the formula as ATen operators through autograd; 16 query and 4 key heads of
// 128.
#include "d9d/kernels/rotary/rotary.h"

#include <benchmark/benchmark.h>

namespace {

using d9d::kernels::RotaryStyle;

at::Tensor half_rotated(const at::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return at::cat({-halves[1], halves[0]}, -1);
}

std::pair<at::Tensor, at::Tensor> composition(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                              const at::Tensor& sin, RotaryStyle /*style*/) {
  const at::Tensor cos_heads = cos.unsqueeze(2);
  const at::Tensor sin_heads = sin.unsqueeze(2);
  return {q * cos_heads + half_rotated(q) * sin_heads, k * cos_heads + half_rotated(k) * sin_heads};
}

void forward_backward(benchmark::State& state, decltype(&composition) op) {
  const std::int64_t sequence = state.range(0);
  const at::Tensor q = at::ones({1, sequence, 16, 128}).requires_grad_();
  const at::Tensor k = at::ones({1, sequence, 4, 128}).requires_grad_();
  const at::Tensor table = at::full({1, sequence, 128}, 0.5);
  const at::Tensor grad_q = at::ones_like(q);
  const at::Tensor grad_k = at::ones_like(k);
  for (auto _ : state) {
    const auto [q_rotated, k_rotated] = op(q, k, table, table, RotaryStyle::kHalf);
    torch::autograd::grad({q_rotated, k_rotated}, {q, k}, {grad_q, grad_k});
  }
  state.SetBytesProcessed(state.iterations() * (q.numel() + k.numel()) * q.element_size() * 4);
}

BENCHMARK_CAPTURE(forward_backward, ours, d9d::kernels::apply_rotary)->Arg(1024);
BENCHMARK_CAPTURE(forward_backward, composition, composition)->Arg(1024);

}  // namespace
