// Numbers of a device on their way to the host, while the device goes on.
//
// Example
//   const SideStream copies(device);
//   const HostCopy loss(sums, copies);     // as they are now
//   optimizer.step(...);                   // given to the device at once
//   loss.wait();                           // the host waits for the sums alone: [n] on the CPU
#pragma once

#include <ATen/core/Tensor.h>

#include "d9d/core/device/side_stream.h"

namespace d9d {

class HostCopy {
 public:
  // Of `values` after everything that is on the current stream now; `copies` is of their device.
  HostCopy(at::Tensor values, const SideStream& copies);

  // Waits for the copy, and not for what the device was given after it.
  [[nodiscard]] const at::Tensor& wait() const;

 private:
  at::Tensor values_;  // lives until it is copied
  at::Tensor on_host_;
  StreamEvent copied_;
};

}  // namespace d9d
