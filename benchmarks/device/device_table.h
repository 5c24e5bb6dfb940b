// Operators on a GPU, timed beside a copy of the device's memory in the same run and printed as a Markdown table.
//
// Example
//   void measure(DeviceTable& table) {
//     const std::int64_t copies = num_copies(bytes);                       // each call finds its inputs outside the L2
//     std::vector<at::Tensor> x(copies);
//     std::generate(x.begin(), x.end(), [&] { return at::randn({8192, 2048}, table.device()).to(at::kBFloat16); });
//     table.measure({.operation = "silu", .shape = "8192 x 2048 bf16", .implementation = "ATen", .bytes = bytes},
//                   [&](std::int64_t call) { (void)at::silu(x[call % copies]); });
//   }
//   const bool kAdded = add_device_benchmark("silu", measure);
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

namespace d9d::benchmarks {

struct DeviceCase {
  std::string operation;
  std::string shape;
  std::string implementation;
  double bytes = 0;  // that a call must read and write at least, whatever the implementation does; 0: no such column
  double flop = 0;   // that a call must do at least; 0: no such column
};

// Prints a row a case as it goes.
class DeviceTable {
 public:
  explicit DeviceTable(at::Device device);  // measures the copy

  // Calls `op` with 0, 1, 2, ...: three times to warm up, then in 25 runs of up to 16 calls. A run starts behind other
  // work of the device, so that the calls follow each other without waiting for the host. Prints the median and the
  // tenth and ninetieth percentile of the device's time a call, bandwidth and its share of the copy's, FLOP/s, and the
  // median of the host's time a call.
  void measure(const DeviceCase& measured, const std::function<void(std::int64_t call)>& op);

  [[nodiscard]] at::TensorOptions device() const { return at::TensorOptions(device_); }

 private:
  at::Device device_;
  at::Tensor from_;
  at::Tensor to_;
  double copy_bandwidth_ = 0;  // bytes a second
};

// Sets of tensors of `bytes` each that together do not stay in the L2 cache; at least 2.
[[nodiscard]] std::int64_t num_copies(double bytes);

// With so many digits after the point.
[[nodiscard]] std::string fixed(double value, int digits);

// Called before main. The program runs those that its arguments name, all without arguments. Returns true.
bool add_device_benchmark(const std::string& name, std::function<void(DeviceTable&)> run);

}  // namespace d9d::benchmarks
