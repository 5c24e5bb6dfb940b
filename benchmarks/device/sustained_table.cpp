#include "benchmarks/device/sustained_table.h"

#include <dlfcn.h>

#include <cmath>
#include <iostream>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace d9d::benchmarks {
namespace {

constexpr double kSecondsOfWarmUp = 0.5;
constexpr double kSeconds = 1;

template <class Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// https://docs.nvidia.com/deploy/nvml-api/
std::function<double()> energy_counter(at::Device device) {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (library == nullptr) return {};
  auto* const start = symbol<int()>(library, "nvmlInit_v2");
  auto* const find = symbol<int(unsigned, void**)>(library, "nvmlDeviceGetHandleByIndex_v2");
  auto* const read = symbol<int(void*, unsigned long long*)>(library, "nvmlDeviceGetTotalEnergyConsumption");
  void* handle = nullptr;
  unsigned long long millijoules = 0;
  if (start == nullptr || find == nullptr || read == nullptr || start() != 0 ||
      find(static_cast<unsigned>(device.index()), &handle) != 0 || read(handle, &millijoules) != 0)
    return {};
  return [=] {
    unsigned long long now = 0;
    read(handle, &now);
    return static_cast<double>(now) * 1e-3;
  };
}

}  // namespace

SustainedTable::SustainedTable(at::Device device) : device_(device), joules_(energy_counter(device)) {
  std::cout << "\n| operation, without a pause | shape | implementation | us | GB/s | TFLOP/s | mJ | W |\n"
            << "|---|---|---|---|---|---|---|---|\n";
}

void SustainedTable::measure(const DeviceCase& measured, const std::function<void(std::int64_t)>& op) {
  const c10::impl::VirtualGuardImpl guard(device_.type());
  c10::Event begin(device_.type(), c10::EventFlag::BACKEND_DEFAULT),
      end(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  std::int64_t call = 0;
  const auto seconds_of = [&](std::int64_t num_calls) {
    begin.record(guard.getStream(device_));
    for (std::int64_t i = 0; i < num_calls; ++i) op(call++);
    end.record(guard.getStream(device_));
    end.synchronize();
    return begin.elapsedTime(end) * 1e-3;
  };
  (void)seconds_of(3);
  const double rough = seconds_of(8) / 8;
  (void)seconds_of(std::lround(kSecondsOfWarmUp / rough) + 1);
  const double before = joules_ ? joules_() : 0;
  const std::int64_t num_calls = std::lround(kSeconds / rough) + 1;
  const double seconds = seconds_of(num_calls);
  const double energy = joules_ ? joules_() - before : 0;
  const double each = seconds / static_cast<double>(num_calls);
  std::cout << "| " << measured.operation << " | " << measured.shape << " | " << measured.implementation << " | "
            << fixed(each * 1e6, 1) << " | " << (measured.bytes > 0 ? fixed(measured.bytes / each * 1e-9, 0) : "")
            << " | " << (measured.flop > 0 ? fixed(measured.flop / each * 1e-12, 0) : "") << " | "
            << (joules_ ? fixed(energy / static_cast<double>(num_calls) * 1e3, 1) + " | " + fixed(energy / seconds, 0)
                        : " | ")
            << " |" << std::endl;
}

}  // namespace d9d::benchmarks
