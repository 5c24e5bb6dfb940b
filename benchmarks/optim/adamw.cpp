// One AdamW update of one parameter: our loop against the same update as ATen operators.
#include <benchmark/benchmark.h>

#include "d9d/optim/adamw_update.h"

namespace {

d9d::detail::AdamWTensors tensors(std::int64_t size) {
  return {.parameter = at::ones({size}),
          .grad = at::full({size}, 0.1),
          .exp_avg = at::zeros({size}),
          .exp_avg_sq = at::zeros({size}),
          .max_exp_avg_sq = {}};
}

const d9d::detail::AdamWFactors kFactors{.parameter_decay = 0.999,
                                         .beta1 = 0.9,
                                         .beta2 = 0.999,
                                         .step_size = 1e-3,
                                         .bias_correction2_sqrt = 0.5,
                                         .eps = 1e-8};

void ours(benchmark::State& state) {
  const auto all = tensors(state.range(0));
  for (auto _ : state) d9d::detail::adamw_update_cpu(all, kFactors, 1.0);
  state.SetBytesProcessed(state.iterations() * state.range(0) * 28);
}

void composition(benchmark::State& state) {
  const auto all = tensors(state.range(0));
  const at::Tensor one = at::ones({}, at::kDouble);
  for (auto _ : state) d9d::detail::adamw_update_aten(all, kFactors, one);
  state.SetBytesProcessed(state.iterations() * state.range(0) * 28);
}

BENCHMARK(ours)->Arg(1 << 22);
BENCHMARK(composition)->Arg(1 << 22);

}  // namespace
