// How much memory tensors of a device have, to find what a piece of code leaves behind.
//
// Example
//   const AllocatedBytes allocated(device);
//   const std::int64_t before = allocated.now();
//   const at::Tensor y = layer(x);
//   allocated.now() - before;                    // y, and what its backward needs
#pragma once

#include <cstdint>
#include <memory>

#include <c10/core/Device.h>

namespace d9d {

// CUDA devices: what their allocator has handed out. CPUs: what this thread has allocated since the construction and
// not yet released; backward of CPU tensors runs on the calling thread and counts, and what existed before does not.
// Scopes nest; one ends on the thread where it began.
class AllocatedBytes {
 public:
  explicit AllocatedBytes(c10::Device device);
  ~AllocatedBytes();
  AllocatedBytes(const AllocatedBytes&) = delete;
  AllocatedBytes& operator=(const AllocatedBytes&) = delete;

  // Does not wait for the device.
  [[nodiscard]] std::int64_t now() const;

 private:
  struct OfThread;
  c10::Device device_;
  std::unique_ptr<OfThread> of_thread_;  // of a CPU
};

}  // namespace d9d
