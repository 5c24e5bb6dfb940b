#include "benchmarks/device/device_table.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace d9d::benchmarks {
namespace {

using Op = std::function<void(std::int64_t)>;

constexpr int kWarmUps = 3;
constexpr int kRuns = 25;
constexpr std::int64_t kMaxCalls = 16;
constexpr std::int64_t kCopied = std::int64_t{1} << 30;  // bytes; a copy of it takes 0.5 ms on an H200
constexpr double kSecondsOfRun = 4e-3;                   // of longer operations a run has fewer calls
constexpr double kBytesOutsideL2 = 256e6;

struct Times {
  std::vector<double> device;  // seconds a call, ascending
  std::vector<double> host;
};

double percentile(const std::vector<double>& ascending, double share) {
  return ascending[static_cast<std::size_t>(std::lround(share * static_cast<double>(ascending.size() - 1)))];
}

// Seconds on the device between the start and the end of what `work` puts on its current stream.
double device_seconds(at::Device device, const std::function<void()>& work) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  c10::Event start(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  start.record(guard.getStream(device));
  work();
  end.record(guard.getStream(device));
  end.synchronize();
  return start.elapsedTime(end) * 1e-3;
}

// `occupy` keeps the device busy while the host prepares the calls.
Times time_calls(at::Device device, const std::function<void()>& occupy, const Op& op) {
  std::int64_t call = 0;
  double seconds = 0;
  for (int i = 0; i < kWarmUps; ++i) seconds = device_seconds(device, [&] { op(call++); });
  const std::int64_t num_calls =
      std::clamp(static_cast<std::int64_t>(kSecondsOfRun / seconds), std::int64_t{1}, kMaxCalls);
  Times times;
  for (int run = 0; run < kRuns; ++run) {
    occupy();
    double host = 0;
    const double total = device_seconds(device, [&] {
      const auto begin = std::chrono::steady_clock::now();
      for (std::int64_t i = 0; i < num_calls; ++i) op(call++);
      host = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    });
    times.device.push_back(total / static_cast<double>(num_calls));
    times.host.push_back(host / static_cast<double>(num_calls));
  }
  std::ranges::sort(times.device);
  std::ranges::sort(times.host);
  return times;
}

}  // namespace

DeviceTable::DeviceTable(at::Device device)
    : device_(device),
      from_(at::zeros({kCopied}, at::TensorOptions(device).dtype(at::kByte))),
      to_(at::zeros_like(from_)) {
  const auto copy = [this](std::int64_t) { to_.copy_(from_); };
  const double bytes = 2.0 * static_cast<double>(kCopied);
  copy_bandwidth_ = bytes / percentile(time_calls(
                                           device, [] {}, copy)
                                           .device,
                                       0.5);
  std::cout << "\n| operation | shape | implementation | us (p10 to p90) | MB | GB/s | of copy | TFLOP/s | host us |\n"
            << "|---|---|---|---|---|---|---|---|---|\n";
  measure({.operation = "copy", .shape = "1 GiB", .implementation = "ATen", .bytes = bytes}, copy);
}

void DeviceTable::measure(const DeviceCase& measured, const Op& op) {
  const auto occupy = [this] {
    for (int i = 0; i < 8; ++i) to_.copy_(from_);
  };
  const Times times = time_calls(device_, occupy, op);
  const double seconds = percentile(times.device, 0.5);
  const double bandwidth = measured.bytes / seconds;
  std::cout << "| " << measured.operation << " | " << measured.shape << " | " << measured.implementation << " | "
            << fixed(seconds * 1e6, 1) << " (" << fixed(percentile(times.device, 0.1) * 1e6, 1) << " to "
            << fixed(percentile(times.device, 0.9) * 1e6, 1) << ") | "
            << (measured.bytes > 0 ? fixed(measured.bytes * 1e-6, 1) + " | " + fixed(bandwidth * 1e-9, 0) + " | " +
                                         fixed(100 * bandwidth / copy_bandwidth_, 1) + " %"
                                   : " |  | ")
            << " | " << (measured.flop > 0 ? fixed(measured.flop / seconds * 1e-12, 0) : "") << " | "
            << fixed(percentile(times.host, 0.5) * 1e6, 1) << " |" << std::endl;
}

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

std::int64_t num_copies(double bytes) {
  return std::max(std::int64_t{2}, static_cast<std::int64_t>(std::ceil(kBytesOutsideL2 / bytes)));
}

}  // namespace d9d::benchmarks
