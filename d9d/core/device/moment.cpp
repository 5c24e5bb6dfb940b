#include "d9d/core/device/moment.h"

#include <algorithm>

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

double median_seconds(const std::vector<std::pair<Moment, Moment>>& spans) {
  std::vector<double> seconds;
  for (const auto& [begin, end] : spans) seconds.push_back(begin.seconds_until(end));
  const auto middle = seconds.begin() + std::ssize(seconds) / 2;
  std::ranges::nth_element(seconds, middle);
  return *middle;
}

}  // namespace d9d
