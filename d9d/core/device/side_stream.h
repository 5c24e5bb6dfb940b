// A second queue of device work beside the current stream. The CPU has none: work runs immediately.
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

// A point in the work of a stream. Copies refer to the same point.
class StreamEvent {
 public:
  StreamEvent() = default;  // nothing to wait for
  // Returns the point after all work that the current stream of the device has now.
  [[nodiscard]] static StreamEvent of_current_stream(c10::Device device);
  void wait() const;                       // makes the current stream wait
  void synchronize() const;                // makes the host wait
  [[nodiscard]] bool is_complete() const;  // whether the device has passed the point

 private:
  friend class SideStream;
  struct Recorded;
  std::shared_ptr<Recorded> recorded_;
};

// Keeps the memory of a tensor from being reused before the work that is on the current stream now has finished. Call
// it for a tensor that was allocated on another stream and may be dropped while the current stream still uses it.
void keep_for_current_stream(const at::Tensor& tensor);

class SideStream {
 public:
  explicit SideStream(c10::Device device);
  ~SideStream();
  SideStream(SideStream&&) noexcept;

  // Runs `work` with this stream as the current one, after all work that is on the caller's current stream now. Returns
  // the point at which `work` is complete.
  [[nodiscard]] StreamEvent run(const std::function<void()>& work) const;
  // Does the same as run(), but does not wait for the caller's current stream.
  [[nodiscard]] StreamEvent run_at_once(const std::function<void()>& work) const;

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;  // null: the CPU
};

}  // namespace d9d
