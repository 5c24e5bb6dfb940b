// Copies values of a device to the host while the device continues with other work.
//
// Example
//   const SideStream copies(device);
//   const HostCopy loss(sums, copies);     // their values at this point of the current stream
//   optimizer.step(...);                   // its kernels are launched without a wait
//   loss.wait();                           // the host waits for the sums only: [n] on the CPU
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "d9d/core/device/side_stream.h"

namespace d9d {

class World;

class HostCopy {
 public:
  // Copies `values` after all work that is on the current stream now. `copies`: a stream of their device. `crossed`:
  // the world whose ranks communicated to compute the values; null: they did not communicate.
  HostCopy(at::Tensor values, const SideStream& copies, std::shared_ptr<const World> crossed = nullptr);

  [[nodiscard]] bool is_complete() const { return copied_.is_complete(); }  // whether wait() returns immediately
  // Waits for the copy, but not for work that was enqueued after it. Throws CommunicationError if a group of `crossed`
  // has failed, since the values are then invalid.
  [[nodiscard]] const at::Tensor& wait() const;

 private:
  at::Tensor values_;  // kept alive until it is copied
  at::Tensor on_host_;
  StreamEvent copied_;
  std::shared_ptr<const World> crossed_;
};

}  // namespace d9d
