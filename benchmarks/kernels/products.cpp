// Forward products of linears and heads by the cuBLAS kernel that we choose, against ATen's choice; and the gradients
// of gate and up through a linear by one kernel, against the two that it replaces. All in bf16. Calls follow each other
// without a pause, because at sustained load the power that a kernel draws decides how fast it is.
#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/kernels/linear/gemm.h"
#include "d9d/kernels/silu_mul/silu_mul_impl.h"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear_impl.h"

#include "benchmarks/device/sustained_table.h"

namespace d9d::benchmarks {
namespace {

constexpr std::size_t kCopies = 3;  // of the operands, so that they do not stay in the L2 cache

struct Sizes {
  std::int64_t rows;
  std::int64_t terms;
  std::int64_t columns;
};

void measure_product(SustainedTable& table, at::TensorOptions bf16, const Sizes& sizes, at::ScalarType out_dtype) {
  std::array<at::Tensor, kCopies> x, weight, out;
  for (std::size_t i = 0; i < kCopies; ++i) {
    x[i] = at::randn({sizes.rows, sizes.terms}, bf16);
    weight[i] = at::randn({sizes.columns, sizes.terms}, bf16);
    out[i] = at::empty({sizes.rows, sizes.columns}, bf16.dtype(out_dtype));
  }
  const auto row = [&](const char* implementation, const auto& multiply) {
    table.measure({.operation = out_dtype == at::kFloat ? "x W^T in fp32" : "x W^T",
                   .shape = cat(sizes.rows, " x ", sizes.terms, " to ", sizes.columns),
                   .implementation = implementation,
                   .flop = 2.0 * static_cast<double>(sizes.rows * sizes.terms * sizes.columns)},
                  [&](std::int64_t call) { multiply(static_cast<std::size_t>(call) % kCopies); });
  };
  row("ours", [&](std::size_t i) { kernels::detail::write_rows_product(out[i], x[i], weight[i]); });
  row("ATen", [&](std::size_t i) { kernels::detail::multiply(out[i], x[i], weight[i].t()); });
}

void measure_silu_mul_linear(SustainedTable& table, at::TensorOptions bf16, const Sizes& sizes) {
  std::array<at::Tensor, kCopies> grad_out, weight, gate, up;
  for (std::size_t i = 0; i < kCopies; ++i) {
    grad_out[i] = at::randn({sizes.rows, sizes.terms}, bf16);
    weight[i] = at::randn({sizes.terms, sizes.columns}, bf16);
    const at::Tensor both = at::randn({sizes.rows, 2 * sizes.columns}, bf16);
    gate[i] = both.narrow(1, 0, sizes.columns);
    up[i] = both.narrow(1, sizes.columns, sizes.columns);
  }
  const auto row = [&](const char* implementation, const auto& run) {
    table.measure({.operation = "silu_mul_linear backward, gate and up",
                   .shape = cat(sizes.rows, " x ", sizes.columns, " to ", sizes.terms),
                   .implementation = implementation,
                   .flop = 2.0 * static_cast<double>(sizes.rows * sizes.terms * sizes.columns)},
                  [&](std::int64_t call) { run(static_cast<std::size_t>(call) % kCopies); });
  };
  row("ours", [&](std::size_t i) {
    (void)kernels::detail::silu_mul_linear_backward_cuda(grad_out[i], gate[i], up[i], weight[i],
                                                         /*wants_product=*/true);
  });
  row("at::mm, silu_mul", [&](std::size_t i) {
    (void)kernels::detail::silu_mul_backward_cuda(at::mm(grad_out[i], weight[i]), gate[i], up[i],
                                                  {.gate = true, .up = true});
  });
}

const bool kAdded = add_device_benchmark("products", [](DeviceTable& of_device) {
  const at::TensorOptions bf16 = of_device.device().dtype(at::kBFloat16);
  SustainedTable table(bf16.device());
  for (const Sizes& sizes : {Sizes{8192, 1024, 2048}, Sizes{8192, 1024, 6144}, Sizes{8192, 2048, 4096},
                             Sizes{8192, 2048, 6144}, Sizes{8192, 2048, 12288}, Sizes{8192, 3072, 16384},
                             Sizes{8192, 4096, 6144}, Sizes{4096, 2048, 12288}, Sizes{16384, 2048, 4096}})
    measure_product(table, bf16, sizes, at::kBFloat16);
  for (const std::int64_t terms : {1024, 2048, 2560}) measure_product(table, bf16, {2048, terms, 8448}, at::kFloat);
  for (const Sizes& sizes : {Sizes{8192, 1024, 3072}, Sizes{8192, 2048, 6144}, Sizes{8192, 4096, 12288},
                             Sizes{2048, 2048, 6144}, Sizes{1400, 2048, 6144}})
    measure_silu_mul_linear(table, bf16, sizes);
});

}  // namespace
}  // namespace d9d::benchmarks
