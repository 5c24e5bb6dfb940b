// linear_cross_entropy forward and backward against dense logits and ATen's cross_entropy_loss.
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy.h"

#include <benchmark/benchmark.h>

namespace {

constexpr std::int64_t kRows = 2048;
constexpr std::int64_t kHidden = 512;

using Op = at::Tensor (*)(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets);

at::Tensor ours(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets) {
  return d9d::kernels::linear_cross_entropy(hidden, weight, targets).loss;
}

at::Tensor dense(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets) {
  return at::cross_entropy_loss(at::linear(hidden, weight), targets, {}, at::Reduction::None);
}

void forward_backward(benchmark::State& state, Op op) {
  const std::int64_t vocabulary = state.range(0);
  const at::Tensor hidden = at::ones({kRows, kHidden}).requires_grad_();
  const at::Tensor weight = at::full({vocabulary, kHidden}, 1e-3).requires_grad_();
  const at::Tensor targets = at::arange(kRows).remainder(vocabulary);
  const at::Tensor grad = at::ones({kRows});
  for (auto _ : state) torch::autograd::grad({op(hidden, weight, targets)}, {hidden, weight}, {grad});
  const double products = op == ours ? 4 : 3;  // ours computes the logits again in the backward
  state.counters["FLOP/s"] = benchmark::Counter(products * 2 * kRows * kHidden * static_cast<double>(vocabulary),
                                                benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK_CAPTURE(forward_backward, ours, ours)->Arg(8192)->Arg(32768)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(forward_backward, dense, dense)->Arg(8192)->Arg(32768)->Unit(benchmark::kMillisecond);

}  // namespace
