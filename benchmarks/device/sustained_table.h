// Operators that run without a pause, as a step runs them, on a GPU whose clock falls to the power that it may draw:
// time and energy a call, printed as a Markdown table.
//
// Example
//   SustainedTable table(device);
//   table.measure({.operation = "product", .shape = "8192 x 2048 x 12288", .implementation = "ATen", .flop = flop},
//                 [&](std::int64_t call) { at::mm_out(out[call % 2], x[call % 2], w[call % 2]); });
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include "benchmarks/device/device_table.h"

namespace d9d::benchmarks {

// Prints a row a case as it goes.
class SustainedTable {
 public:
  explicit SustainedTable(at::Device device);  // that NVML counts the same, so without CUDA_VISIBLE_DEVICES

  // Calls `op` with 0, 1, 2, ... for a second, after half a second of the same that does not count. Prints the device's
  // time a call and, where the driver counts it, energy a call and power.
  void measure(const DeviceCase& measured, const std::function<void(std::int64_t call)>& op);

 private:
  at::Device device_;
  std::function<double()> joules_;  // that the device has used since some time; empty: nobody counts
};

}  // namespace d9d::benchmarks
