// Measures how long work takes on a device, or on the host if there is no device.
//
// Example
//   const Moment begin(device);
//   forward();
//   const Moment end(device);
//   begin.seconds_until(end);
#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

namespace d9d {

// The time at which the device has completed all work that its current stream has when this is constructed. On a CPU:
// the time of construction.
class Moment {
 public:
  explicit Moment(c10::Device device);
  // The host waits for both moments.
  [[nodiscard]] double seconds_until(const Moment& later) const;

 private:
  struct Recorded;
  std::shared_ptr<Recorded> recorded_;  // null: the host's clock
  std::chrono::steady_clock::time_point host_ = std::chrono::steady_clock::now();
};

// Returns the median duration of the spans, each from its first moment to its second; there must be at least one. The
// host waits for all moments.
[[nodiscard]] double median_seconds(const std::vector<std::pair<Moment, Moment>>& spans);

}  // namespace d9d
