// Of every benchmark program: on a machine with a GPU the device benchmarks, elsewhere those of Google Benchmark.
// CUDA_VISIBLE_DEVICES= runs the latter everywhere.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "d9d/core/device/cuda_runtime.h"

#include "benchmarks/device/device_table.h"

namespace d9d::benchmarks {
namespace {

std::map<std::string, std::function<void(DeviceTable&)>>& device_benchmarks() {
  static std::map<std::string, std::function<void(DeviceTable&)>> benchmarks;
  return benchmarks;
}

void run_device_benchmarks(const std::vector<std::string>& names) {
  DeviceTable table(at::Device(at::kCUDA, 0));
  for (const auto& [name, run] : device_benchmarks())
    if (names.empty() || std::ranges::find(names, name) != names.end()) run(table);
}

}  // namespace

bool add_device_benchmark(const std::string& name, std::function<void(DeviceTable&)> run) {
  return device_benchmarks().emplace(name, std::move(run)).second;
}

}  // namespace d9d::benchmarks

int main(int argc, char** argv) {
  if (d9d::load_cuda()) {
    d9d::benchmarks::run_device_benchmarks({argv + 1, argv + argc});
    return 0;
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
