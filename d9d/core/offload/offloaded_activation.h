// A tensor that waits in host memory from its forward until its backward. Copies in both directions run beside the
// device's work, on streams of their own.
//
// Example
//   OffloadedActivation waiting(x.detach());     // in forward; once x is dropped, its memory is free for later layers
//   waiting.prefetch();                          // in backward, one layer ahead
//   const at::Tensor same = waiting.take();
//
// The host memory is page-locked, of LibTorch's allocator: a power of two of bytes for each tensor, which is kept for
// the next step. A tensor of the CPU is copied too, so that programs without a GPU test what they will do on one. One
// of the meta device is only dropped, so that memory that is planned counts it as absent.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

namespace d9d {

class OffloadedActivation {
 public:
  // Starts the copy to the host, after the work that the current stream has now. The device memory of `tensor`, which
  // no one else should keep, is released when some later tensors of this thread have been offloaded: the current stream
  // then waits for the copy, never the host. The tensor must not be modified in place.
  explicit OffloadedActivation(const at::Tensor& tensor);
  // No copy of this may be needed any more; the current stream waits for those that are in flight.
  ~OffloadedActivation();
  OffloadedActivation(const OffloadedActivation&) = delete;
  OffloadedActivation& operator=(const OffloadedActivation&) = delete;

  // Starts the copy to the device, unless the tensor is there or on its way.
  void prefetch() const;
  // Returns the tensor, for the current stream, without a graph. Throws StateError if it was modified in place before
  // its copy was complete.
  [[nodiscard]] at::Tensor take() const;

 private:
  struct Transfer;
  class Lane;
  std::shared_ptr<Transfer> transfer_;
};

}  // namespace d9d
