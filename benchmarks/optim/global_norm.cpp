// The norm of all gradients of a model: our two launches beside _foreach_norm of ATen.
#include "d9d/kernels/global_norm/global_norm.h"

#include <ATen/ATen.h>

#include "benchmarks/device/device_table.h"
#include "benchmarks/optim/model_shapes.h"

namespace {

using d9d::benchmarks::DeviceTable;

void measure(DeviceTable& table) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t num_shards : {1, 8, 64}) {
      std::vector<at::Tensor> gradients;
      double num_elements = 0;
      for (const std::int64_t size : d9d::benchmarks::qwen3_1_7b_sizes(num_shards)) {
        gradients.push_back(at::randn({size}, table.device().dtype(dtype)));
        num_elements += static_cast<double>(size);
      }
      const auto measure_as = [&](const std::string& implementation, const auto& op) {
        table.measure({.operation = dtype == at::kFloat ? "norm of fp32 gradients" : "norm of bf16 gradients",
                       .shape = d9d::benchmarks::describe(num_elements, gradients.size()),
                       .implementation = implementation,
                       .bytes = num_elements * static_cast<double>(at::elementSize(dtype))},
                      [&](std::int64_t) { (void)op(); });
      };
      measure_as("ours", [&] {
        return d9d::kernels::detail::global_norm_cuda(gradients, d9d::kernels::detail::NormOrder::kTwo);
      });
      measure_as("at::_foreach_norm",
                 [&] { return at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2))); });
    }
  }
}

const bool kAdded = d9d::benchmarks::add_device_benchmark("global_norm", measure);

}  // namespace
