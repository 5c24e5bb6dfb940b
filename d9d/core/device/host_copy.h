// Numbers of a device on their way to the host, while the device goes on.
//
// Example
//   const SideStream copies(device);
//   const HostCopy loss(sums, copies);     // as they are now
//   optimizer.step(...);                   // given to the device at once
//   loss.wait();                           // the host waits for the sums alone: [n] on the CPU
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "d9d/core/device/side_stream.h"

namespace d9d {

class World;

class HostCopy {
 public:
  // Of `values` after everything that is on the current stream now; `copies` is of their device. `crossed`: the job
  // between whose ranks they went, for values that did.
  HostCopy(at::Tensor values, const SideStream& copies, std::shared_ptr<const World> crossed = nullptr);

  // Waits for the copy, and not for what the device was given after it. Throws CommunicationError where a group of
  // `crossed` has failed: the values are then none.
  [[nodiscard]] const at::Tensor& wait() const;

 private:
  at::Tensor values_;  // lives until it is copied
  at::Tensor on_host_;
  StreamEvent copied_;
  std::shared_ptr<const World> crossed_;
};

}  // namespace d9d
