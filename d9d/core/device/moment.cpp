#include "d9d/core/device/moment.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace d9d {

struct Moment::Recorded {
  c10::Event event;
};

Moment::Moment(c10::Device device) {
  if (device.is_cpu()) return;
  recorded_ = std::make_shared<Recorded>(Recorded{c10::Event(device.type(), c10::EventFlag::BACKEND_DEFAULT)});
  recorded_->event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

double Moment::seconds_until(const Moment& later) const {
  if (recorded_ == nullptr) return std::chrono::duration<double>(later.host_ - host_).count();
  later.recorded_->event.synchronize();
  constexpr double kMilliseconds = 1e-3;
  return recorded_->event.elapsedTime(later.recorded_->event) * kMilliseconds;
}

}  // namespace d9d
