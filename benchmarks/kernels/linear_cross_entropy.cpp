// linear_cross_entropy forward and backward against dense logits and ATen's cross_entropy_loss, and with the gradient
// filter for softmaxes as in training.
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy.h"

#include <cmath>

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

// Nine tenths of each softmax are on 8 tokens, the k-th in proportion to k^-1.5, frequent ones with low ids; the
// filter's eps is that of bf16.
void peaked(benchmark::State& state, std::optional<double> filter_eps) {
  const std::int64_t vocabulary = state.range(0);
  const auto numbers = [](at::IntArrayRef sizes) {  // in [0, 1)
    const at::Tensor places = at::arange(c10::multiply_integers(sizes), at::kDouble);
    return places.sin_().mul_(1e3).frac_().abs_().to(at::kFloat).view(sizes);
  };
  const at::Tensor weight = numbers({vocabulary, kHidden}).mul_(2).sub_(1);
  at::Tensor hidden = at::zeros({kRows, kHidden});
  const at::Tensor draws = numbers({8, kRows}).pow_(4).mul_(static_cast<double>(vocabulary - 1)).to(at::kLong);
  for (std::int64_t k = 0; k < 8; ++k)
    hidden.add_(weight.index_select(0, draws[k]), (14 - 1.5 * std::log1p(k)) / (kHidden / 3.0));
  hidden.requires_grad_();
  weight.requires_grad_();
  const at::Tensor grad = at::ones({kRows});
  for (auto _ : state) {
    const auto output = d9d::kernels::linear_cross_entropy(hidden, weight, draws[0], {.filter_eps = filter_eps});
    torch::autograd::grad({output.loss}, {hidden, weight}, {grad});
  }
}

BENCHMARK_CAPTURE(peaked, whole, std::nullopt)->Arg(32768)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(peaked, filtered, 0x1p-12)->Arg(32768)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(forward_backward, ours, ours)->Arg(8192)->Arg(32768)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(forward_backward, dense, dense)->Arg(8192)->Arg(32768)->Unit(benchmark::kMillisecond);

}  // namespace
