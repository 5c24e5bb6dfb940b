// The copy from float32 to bfloat16 with stochastic rounding, against a copy that rounds to nearest.
#include "d9d/kernels/stochastic/copy_stochastic.h"

#include <ATen/ATen.h>

#include "benchmarks/device/device_table.h"

namespace {

using d9d::benchmarks::DeviceTable;

void measure(DeviceTable& table) {
  for (const std::int64_t size : {std::int64_t{1} << 20, std::int64_t{1} << 24, std::int64_t{1} << 29}) {
    const double bytes = 6.0 * static_cast<double>(size);
    std::vector<at::Tensor> sources, targets;
    for (std::int64_t i = 0; i < d9d::benchmarks::num_copies(bytes); ++i) {
      sources.push_back(at::randn({size}, table.device()));
      targets.push_back(at::empty({size}, table.device().dtype(at::kBFloat16)));
    }
    const auto measure_as = [&](const std::string& implementation, const auto& op) {
      table.measure({.operation = "copy fp32 to bf16",
                     .shape = std::to_string(size),
                     .implementation = implementation,
                     .bytes = bytes},
                    [&](std::int64_t call) {
                      const auto i = static_cast<std::size_t>(call) % sources.size();
                      op(targets[i], sources[i]);
                    });
    };
    measure_as("ours, stochastic", [](const at::Tensor& target, const at::Tensor& source) {
      d9d::kernels::copy_fp32_to_bf16_stochastic_(target, source, {.key = 1, .step = 2});
    });
    measure_as("ATen copy_, to nearest",
               [](const at::Tensor& target, const at::Tensor& source) { target.copy_(source); });
  }
}

const bool kAdded = d9d::benchmarks::add_device_benchmark("copy_stochastic", measure);

}  // namespace
