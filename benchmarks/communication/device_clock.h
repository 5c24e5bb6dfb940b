// How long work takes on a device, or on the host where there is none.
#pragma once

#include <chrono>
#include <optional>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace benchmarks {

// A moment on the current stream of a device, taken when the work before it is done.
class Moment {
 public:
  explicit Moment(c10::Device device) {
    if (device.is_cpu()) return;
    event_.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // with its time
    event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  // Waits for both.
  [[nodiscard]] double milliseconds_until(const Moment& later) const {
    if (!event_) return std::chrono::duration<double, std::milli>(later.host_ - host_).count();
    later.event_->synchronize();
    return event_->elapsedTime(*later.event_);
  }

 private:
  std::optional<c10::Event> event_;  // none: the host's clock
  std::chrono::steady_clock::time_point host_ = std::chrono::steady_clock::now();
};

}  // namespace benchmarks
