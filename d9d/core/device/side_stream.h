// A second queue of device work beside the current one. On the CPU there is none: work runs at once.
//
// Example
//   SideStream gathers(device);
//   const StreamEvent ready = gathers.run([&] { communicator->all_gather(full, shard).wait(); });
//   ...                          // work of the current stream that does not need `full`
//   ready.wait();                // the current stream waits; the host does not
//   ready.synchronize();         // the host waits
#pragma once

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace d9d {

// A point in the work of a stream. A value.
class StreamEvent {
 public:
  StreamEvent() = default;   // nothing to wait for
  void wait() const;         // makes the current stream wait
  void synchronize() const;  // makes the host wait

 private:
  friend class SideStream;
  struct Recorded;
  std::shared_ptr<Recorded> recorded_;
};

// The memory of `tensor`, which was allocated for work of another stream, is not given to anyone else before the work
// is done that is on the current stream now: for tensors that are dropped while a side stream still reads or writes
// them.
void keep_for_current_stream(const at::Tensor& tensor);

class SideStream {
 public:
  explicit SideStream(c10::Device device);
  ~SideStream();
  SideStream(SideStream&&) noexcept;

  // Runs `work` with this stream as the current one, after everything that is on the current stream now. Returns the
  // point where it is done.
  [[nodiscard]] StreamEvent run(const std::function<void()>& work) const;

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;  // null: the CPU
};

}  // namespace d9d
