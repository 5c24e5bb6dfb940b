#include "d9d/core/device/side_stream.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace d9d {

struct StreamEvent::Recorded {
  explicit Recorded(c10::Device device) : event(device.type()) {}
  c10::Event event;
};

struct SideStream::Stream {
  c10::Stream value;
};

namespace {

bool has_streams(c10::Device device) { return !device.is_cpu() && !device.is_meta(); }

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

}  // namespace

StreamEvent StreamEvent::of_current_stream(c10::Device device) {
  StreamEvent reached;
  if (!has_streams(device)) return reached;
  reached.recorded_ = std::make_shared<Recorded>(device);
  reached.recorded_->event.record(current_stream(device));
  return reached;
}

void StreamEvent::wait() const {
  if (recorded_ == nullptr) return;
  const c10::Device device = recorded_->event.device();
  recorded_->event.block(current_stream(device));
}

void StreamEvent::synchronize() const {
  if (recorded_ != nullptr) recorded_->event.synchronize();
}

bool StreamEvent::is_complete() const { return recorded_ == nullptr || recorded_->event.query(); }

void keep_for_current_stream(const at::Tensor& tensor) {
  if (has_streams(tensor.device())) tensor.record_stream(current_stream(tensor.device()));
}

SideStream::SideStream(c10::Device device) {
  if (!has_streams(device)) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  stream_ = std::make_unique<Stream>(Stream{guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true)});
}
SideStream::~SideStream() = default;
SideStream::SideStream(SideStream&&) noexcept = default;

StreamEvent SideStream::run(const std::function<void()>& work) const {
  if (stream_ != nullptr) {
    const c10::Device device = stream_->value.device();
    c10::Event before(device.type());
    before.record(current_stream(device));
    before.block(stream_->value);
  }
  return run_at_once(work);
}

StreamEvent SideStream::run_at_once(const std::function<void()>& work) const {
  StreamEvent done;
  if (stream_ == nullptr) {
    work();
    return done;
  }
  const c10::Device device = stream_->value.device();
  const c10::StreamGuard guard(stream_->value);
  work();
  done.recorded_ = std::make_shared<StreamEvent::Recorded>(device);
  done.recorded_->event.record(stream_->value);
  return done;
}

}  // namespace d9d
