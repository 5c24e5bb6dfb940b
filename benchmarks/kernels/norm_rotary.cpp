// norm_rotary forward and backward on parts of one projection, as attention calls it, against two rms_norm and one
// apply_rotary.
#include "d9d/kernels/norm_rotary/norm_rotary.h"

#include "d9d/kernels/rms_norm/rms_norm.h"

#include "benchmarks/kernels/device_inputs.h"

namespace {

using d9d::benchmarks::Tensors;
using d9d::kernels::RotaryStyle;

struct Shape {
  std::int64_t batch, sequence, q_heads, k_heads;
  at::ScalarType dtype, table_dtype;
  RotaryStyle style = RotaryStyle::kHalf;
};

// Bytes that must be moved: forward, queries and keys in and out; backward, queries, keys and their gradients in and
// out; each way also both tables once.
void measure_norm_rotary(d9d::benchmarks::DeviceTable& table, const Shape& shape) {
  const std::int64_t tokens = shape.batch * shape.sequence;
  const auto bytes_of = [](std::int64_t size, at::ScalarType dtype) {
    return static_cast<double>(size * static_cast<std::int64_t>(c10::elementSize(dtype)));
  };
  const double heads = bytes_of(tokens * (shape.q_heads + shape.k_heads) * 128, shape.dtype);
  const double tables = bytes_of(2 * tokens * 128, shape.table_dtype);
  const auto make_inputs = [=] {
    const auto options = table.device().dtype(shape.dtype);
    const at::Tensor qkv = at::randn({shape.batch, shape.sequence, (shape.q_heads + 2 * shape.k_heads) * 128}, options);
    const auto heads_from = [&](std::int64_t first, std::int64_t count) {
      return qkv.narrow(-1, first * 128, count * 128).unflatten(-1, {count, 128}).detach().requires_grad_();
    };
    const auto rows = at::randn({shape.batch, shape.sequence, 128}, table.device().dtype(shape.table_dtype));
    return Tensors{heads_from(0, shape.q_heads),
                   heads_from(shape.q_heads, shape.k_heads),
                   at::randn({128}, options).requires_grad_(),
                   at::randn({128}, options).requires_grad_(),
                   rows,
                   rows.clone()};
  };
  const auto fused = [style = shape.style](const Tensors& in) {
    const auto [q, k] =
        d9d::kernels::norm_rotary(in[0], in[1], in[2], in[3], in[4], in[5], {.style = style, .eps = 1e-6});
    return Tensors{q, k};
  };
  const auto separate = [style = shape.style](const Tensors& in) {
    const auto [q, k] = d9d::kernels::apply_rotary(d9d::kernels::rms_norm(in[0], in[2]),
                                                   d9d::kernels::rms_norm(in[1], in[3]), in[4], in[5], style);
    return Tensors{q, k};
  };
  measure_forward_and_backward(
      table, {.operation = "norm_rotary",
              .shape = d9d::cat(shape.batch, " x ", shape.sequence, " x (", shape.q_heads, " + ", shape.k_heads,
                                ") x 128 ", shape.dtype, ", tables ", shape.table_dtype,
                                shape.style == RotaryStyle::kHalf ? "" : ", interleaved"),
              .forward_bytes = 2 * heads + tables,
              .backward_bytes = 3 * heads + tables,
              .make_inputs = make_inputs,
              .implementations = {{"ours", fused}, {"ours, three operators", separate}}});
}

const bool kAdded = d9d::benchmarks::add_device_benchmark("norm_rotary", [](auto& table) {
  measure_norm_rotary(table, {2, 4096, 16, 8, at::kBFloat16, at::kBFloat16});
  measure_norm_rotary(table, {2, 4096, 16, 8, at::kBFloat16, at::kFloat});
  measure_norm_rotary(table, {2, 4096, 32, 4, at::kBFloat16, at::kBFloat16});
  measure_norm_rotary(table, {2, 4096, 32, 8, at::kBFloat16, at::kBFloat16});
  measure_norm_rotary(table, {2, 4096, 16, 8, at::kBFloat16, at::kBFloat16, RotaryStyle::kInterleaved});
  measure_norm_rotary(table, {2, 4096, 16, 8, at::kFloat, at::kFloat});
});

}  // namespace
