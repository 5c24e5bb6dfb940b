// Host memory whose pages are locked, so that a device copies to and from it while the host continues.
//
// Example
//   const PinnedMemory memory(num_bytes, device);
//   memory.tensor(offset, {4, 8}, at::kFloat).copy_(weight, /*non_blocking=*/true);
//
// LibTorch's own allocator of pinned tensors rounds sizes up to powers of two; this one does not. Local.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace d9d {

class PinnedMemory {
 public:
  // Allocates and locks the memory, which takes about a second for 4 GB; other CUDA calls of the process may wait
  // meanwhile. If the device is the CPU, pages are not locked, and the system provides them when they are first
  // written. Throws StateError if the host lacks memory.
  PinnedMemory(std::int64_t num_bytes, c10::Device device);
  // Frees the memory; no copy may be in flight.
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  // A contiguous CPU tensor over the bytes from `offset` on, a multiple of the element's size. Must not outlive this.
  [[nodiscard]] at::Tensor tensor(std::int64_t offset, at::IntArrayRef shape, at::ScalarType dtype) const;

 private:
  std::span<std::byte> bytes_;
  bool is_locked_ = false;
};

}  // namespace d9d
