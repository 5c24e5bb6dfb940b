// apply_rotary forward and backward against the formula as ATen operators through autograd. On the CPU there are 16
// query and 4 key heads of 128.
#include "d9d/kernels/rotary/rotary.h"

#include <benchmark/benchmark.h>

#include "benchmarks/kernels/device_inputs.h"

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

using d9d::benchmarks::Tensors;

struct DeviceShape {
  std::int64_t batch, sequence, q_heads, k_heads;
  at::ScalarType dtype, table_dtype;
  RotaryStyle style = RotaryStyle::kHalf;
};

// Bytes that must be moved in each of forward and backward: queries and keys in and out, and both tables once.
void measure_rotary(d9d::benchmarks::DeviceTable& table, const DeviceShape& shape) {
  const std::int64_t tokens = shape.batch * shape.sequence;
  const double bytes = static_cast<double>(
      2 * tokens * (shape.q_heads + shape.k_heads) * 128 * static_cast<std::int64_t>(c10::elementSize(shape.dtype)) +
      2 * tokens * 128 * static_cast<std::int64_t>(c10::elementSize(shape.table_dtype)));
  const auto make_inputs = [=] {
    const auto heads = [&](std::int64_t num_heads) {
      return at::randn({shape.batch, shape.sequence, num_heads, 128}, table.device().dtype(shape.dtype))
          .requires_grad_();
    };
    const auto rows = at::randn({shape.batch, shape.sequence, 128}, table.device().dtype(shape.table_dtype));
    return Tensors{heads(shape.q_heads), heads(shape.k_heads), rows, rows.clone()};
  };
  const auto run = [&](decltype(&composition) op) {
    return [op, style = shape.style](const Tensors& in) {
      const auto [q, k] = op(in[0], in[1], in[2], in[3], style);
      return Tensors{q, k};
    };
  };
  measure_forward_and_backward(
      table, {.operation = "apply_rotary",
              .shape = d9d::cat(shape.batch, " x ", shape.sequence, " x (", shape.q_heads, " + ", shape.k_heads,
                                ") x 128 ", shape.dtype, ", tables ", shape.table_dtype,
                                shape.style == RotaryStyle::kHalf ? "" : ", interleaved"),
              .forward_bytes = bytes,
              .backward_bytes = bytes,
              .make_inputs = make_inputs,
              .implementations = {{"ours", run(d9d::kernels::apply_rotary)}, {"ATen, composed", run(composition)}}});
}

const bool kAdded = d9d::benchmarks::add_device_benchmark("rotary", [](auto& table) {
  measure_rotary(table, {2, 4096, 16, 8, at::kBFloat16, at::kBFloat16});
  measure_rotary(table, {2, 4096, 16, 8, at::kBFloat16, at::kFloat});
  measure_rotary(table, {2, 4096, 32, 4, at::kBFloat16, at::kBFloat16});
  measure_rotary(table, {2, 4096, 16, 8, at::kBFloat16, at::kBFloat16, RotaryStyle::kInterleaved});
  measure_rotary(table, {2, 4096, 16, 8, at::kFloat, at::kFloat});
});

}  // namespace
