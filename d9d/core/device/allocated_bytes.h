// Measures the memory of a device's tensors, to find how much a piece of code keeps allocated.
//
// Example
//   const AllocatedBytes allocated(device);
//   const std::int64_t before = allocated.now();
//   const at::Tensor y = layer(x);
//   allocated.now() - before;                    // y, and the tensors saved for its backward
//   allocated.peak() - before;                   // the same, and what layer() needed in between
#pragma once

#include <cstdint>
#include <memory>

#include <c10/core/Device.h>

namespace d9d {

// CUDA devices: the bytes that their allocator has given to tensors. CPUs: the bytes that this thread has allocated
// since the construction and not yet released. Backward of CPU tensors runs on the calling thread, so it counts;
// earlier allocations do not. Scopes nest; one ends on the thread where it began.
class AllocatedBytes {
 public:
  explicit AllocatedBytes(c10::Device device);
  ~AllocatedBytes();
  AllocatedBytes(const AllocatedBytes&) = delete;
  AllocatedBytes& operator=(const AllocatedBytes&) = delete;

  // None of these waits for the device.
  [[nodiscard]] std::int64_t now() const;
  // The most that now() has been since the last reset_peak(), on a CUDA device of any user, on a CPU of this one or the
  // construction.
  [[nodiscard]] std::int64_t peak() const;
  void reset_peak();
  // The bytes of all allocations since the construction, released or not.
  [[nodiscard]] std::int64_t total() const;

 private:
  struct OfThread;
  c10::Device device_;
  std::int64_t total_before_ = 0;        // of a CUDA device, at the construction
  std::unique_ptr<OfThread> of_thread_;  // null unless the device is a CPU
};

}  // namespace d9d
