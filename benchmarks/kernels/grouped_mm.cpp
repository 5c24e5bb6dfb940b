// Grouped matrix products of a mixture of experts, against LibTorch's. Bytes count rows, weights and result once;
// operations count two for each row, input feature and output feature.
//
// Loads: `even`: all experts have the same number of rows; `spread`: rows are in proportion to weights between 0.6 and
// 1.5, in no order; `skewed`: the i-th busiest expert has 1/i of the rows of the busiest one.
#include "d9d/kernels/grouped_mm/grouped_mm.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/kernels/grouped_mm/grouped_mm_impl.h"

#include "benchmarks/device/device_table.h"

namespace d9d::benchmarks {
namespace {

using kernels::ExpertTokenGroups;

constexpr std::int64_t kRows = 8192 * 8;

double load_of(const std::string& load, std::int64_t expert, std::int64_t num_experts) {
  const auto shuffled = static_cast<double>(expert * 37 % 64);
  if (load == "spread") return 0.6 + 0.9 * shuffled / 64;
  if (load == "skewed") return 1.0 / static_cast<double>(1 + expert * 37 % num_experts);
  return 1;
}

ExpertTokenGroups groups_of(const std::string& load, std::int64_t num_experts, at::TensorOptions device) {
  double total = 0, sum = 0;
  for (std::int64_t e = 0; e < num_experts; ++e) total += load_of(load, e, num_experts);
  std::vector<std::int32_t> offsets = {0};
  for (std::int64_t e = 0; e < num_experts; ++e) {
    sum += load_of(load, e, num_experts);
    offsets.push_back(static_cast<std::int32_t>(sum / total * kRows + 1e-6));
  }
  return ExpertTokenGroups(at::tensor(offsets, at::kInt).to(device.device()));
}

struct Shape {
  std::int64_t num_experts;
  std::string load;
  std::int64_t in;
  std::int64_t out;
};

void measure_shape(DeviceTable& table, const Shape& shape) {
  const auto bf16 = table.device().dtype(at::kBFloat16);
  const auto groups = groups_of(shape.load, shape.num_experts, table.device());
  const at::Tensor offsets = groups.offsets(), ends = offsets.narrow(0, 1, shape.num_experts);
  constexpr std::size_t kCopies = 2;
  std::array<at::Tensor, kCopies> x, y, w;
  for (std::size_t i = 0; i < kCopies; ++i) {
    x[i] = at::randn({kRows, shape.in}, bf16);
    y[i] = at::randn({kRows, shape.out}, bf16);
    w[i] = at::randn({shape.num_experts, shape.in, shape.out}, bf16);
  }
  const double bytes = 2.0 * static_cast<double>(x[0].numel() + y[0].numel() + w[0].numel());
  const auto row = [&](const std::string& operation, const std::string& implementation, double bytes_of_call,
                       const std::function<void(std::size_t)>& op) {
    table.measure(
        {.operation = cat("grouped_mm ", operation),
         .shape = cat("E", shape.num_experts, " ", shape.load, " ", kRows, " x ", shape.in, " to ", shape.out),
         .implementation = implementation,
         .bytes = bytes_of_call,
         .flop = 2.0 * kRows * static_cast<double>(shape.in * shape.out)},
        [&](std::int64_t call) { op(static_cast<std::size_t>(call) % kCopies); });
  };
  using kernels::detail::grouped_gemm_cuda;
  using kernels::detail::grouped_gemm_torch;
  using kernels::detail::grouped_gemm_wgrad_cuda;
  using kernels::detail::grouped_gemm_wgrad_torch;
  row("forward", "ours", bytes, [&](std::size_t i) { (void)grouped_gemm_cuda(x[i], w[i], offsets); });
  row("forward", "ATen", bytes, [&](std::size_t i) { (void)grouped_gemm_torch(x[i], w[i], ends); });
  row("dInput", "ours", bytes, [&](std::size_t i) { (void)grouped_gemm_cuda(y[i], w[i].transpose(1, 2), offsets); });
  row("dInput", "ATen", bytes, [&](std::size_t i) { (void)grouped_gemm_torch(y[i], w[i].transpose(1, 2), ends); });
  row("dWeight", "ours", bytes, [&](std::size_t i) { (void)grouped_gemm_wgrad_cuda(x[i], y[i], offsets); });
  row("dWeight", "ATen", bytes, [&](std::size_t i) { (void)grouped_gemm_wgrad_torch(x[i], y[i], ends); });
}

const bool kAdded = add_device_benchmark("grouped_mm", [](DeviceTable& table) {
  for (const std::int64_t num_experts : {128, 64, 16}) {
    for (const char* load : {"even", "spread", "skewed"}) {
      measure_shape(table, {num_experts, load, 2048, 1536});
      measure_shape(table, {num_experts, load, 768, 2048});
    }
  }
});

}  // namespace
}  // namespace d9d::benchmarks
