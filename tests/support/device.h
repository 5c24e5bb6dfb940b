// Whether code waits for a GPU although it should only launch work on it.
//
// Example
//   EXPECT_FALSE(waits_for_device([&] { loss_of(model).backward(); }));
#pragma once

#include <functional>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>

namespace d9d::test {

// Runs `work` three times, the last time after tenths of a second of other work on device 0. True if the device has
// finished that other work before `work` returns. The first two runs load the kernels that it needs, with and without
// existing gradients: CUDA may wait for the device when it loads a kernel. Requires that load_cuda() has returned true.
[[nodiscard]] inline bool waits_for_device(const std::function<void()>& work) {
  const at::Tensor a = at::zeros({8192, 8192}, at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(at::kBFloat16));
  at::Tensor product = at::empty_like(a);
  work();
  work();
  at::mm_out(product, a, a);
  at::accelerator::synchronizeDevice(0);
  for (int i = 0; i < 100; ++i) at::mm_out(product, a, a);
  c10::Event queued(at::kCUDA);
  queued.record(at::accelerator::getCurrentStream(0));
  work();
  const bool waited = queued.query();
  at::accelerator::synchronizeDevice(0);
  return waited;
}

}  // namespace d9d::test
