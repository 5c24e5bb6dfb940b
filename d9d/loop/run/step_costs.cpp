#include "d9d/loop/run/step_costs.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "d9d/core/device/cuda_runtime.h"

namespace d9d {
namespace {

constexpr std::size_t kAll = 0;  // index of the sums over all pools in the allocator's statistics

// The resident set of this process (proc(5), statm).
std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

c10::DeviceAllocator& allocator_of(c10::Device device) { return *c10::getDeviceAllocator(device.type()); }

}  // namespace

std::optional<double> peak_flops(const std::string& device_name) {
  // From the data sheets, without sparsity. The first entry that the name contains counts.
  static constexpr std::array<std::pair<const char*, double>, 12> kPeaks = {{{"H100 PCIe", 756e12},
                                                                             {"H100 NVL", 835e12},
                                                                             {"H100", 989e12},
                                                                             {"H200", 989e12},
                                                                             {"H20", 148e12},
                                                                             {"H800", 989e12},
                                                                             {"B200", 2250e12},
                                                                             {"B300", 2250e12},
                                                                             {"A100", 312e12},
                                                                             {"A800", 312e12},
                                                                             {"L40S", 362e12},
                                                                             {"RTX 4090", 165e12}}};
  for (const auto& [name, flops] : kPeaks) {
    if (device_name.find(name) != std::string::npos) return flops;
  }
  return std::nullopt;
}

StepCosts::StepCosts(const DistContext& context, std::optional<double> flops_per_token) : context_(context) {
  if (!flops_per_token || !context.device().is_cuda()) return;
  const auto peak = peak_flops(cuda_device_name(context.device()));
  if (peak) seconds_at_peak_per_token_ = *flops_per_token / *peak;
}

Throughput StepCosts::throughput() {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - std::exchange(start_, now)).count();
  const auto tokens = static_cast<double>(std::exchange(num_tokens_, 0));
  Throughput rate{.tokens_per_second = tokens / seconds / static_cast<double>(context_.world_size())};
  if (seconds_at_peak_per_token_) rate.mfu = rate.tokens_per_second * *seconds_at_peak_per_token_;
  return rate;
}

at::Tensor StepCosts::peak_memory() const {
  double device_bytes = 0;
  if (const c10::Device device = context_.device(); !device.is_cpu()) {
    device_bytes = static_cast<double>(allocator_of(device).getDeviceStats(device.index()).allocated_bytes[kAll].peak);
  }
  const at::Tensor bytes = at::zeros({2}, at::TensorOptions(context_.device()).dtype(at::kDouble));
  bytes[0].fill_(device_bytes);  // a fill does not wait for the device, as a copy would
  bytes[1].fill_(static_cast<double>(resident_bytes()));
  const DeviceMesh ranks = context_.mesh(MeshDomain::kBatch);
  if (ranks.num_ranks() > 1) ranks.communicator()->all_reduce(bytes, ReduceOp::kMax).wait();
  return bytes;
}

std::int64_t StepCosts::memory_now() const {
  const c10::Device device = context_.device();
  if (device.is_cpu()) return resident_bytes();
  return allocator_of(device).getDeviceStats(device.index()).allocated_bytes[kAll].current;
}

}  // namespace d9d
