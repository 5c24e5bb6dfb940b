// Counts the bytes that tensors on the meta device stand for, which a program would allocate on a real device.
//
// Example
//   MetaMemory memory;
//   const at::Tensor x = at::empty({1024, 1024}, at::TensorOptions(at::kMeta).dtype(at::kFloat));
//   memory.live_bytes();       // 4 MiB, of which nothing is allocated
//
// Counts storages that are created on the meta device while the scope lives, on all threads, until they are freed;
// views share one storage. Only one scope may live at a time. Storages may outlive the scope, but must not be resized
// then.
#pragma once

#include <cstdint>
#include <memory>

namespace d9d {

class MetaMemory {
 public:
  MetaMemory();  // Throws StateError while another scope lives.
  ~MetaMemory();
  MetaMemory(const MetaMemory&) = delete;
  MetaMemory& operator=(const MetaMemory&) = delete;

  [[nodiscard]] std::int64_t live_bytes() const;
  // The maximum of live_bytes() since the construction or reset_peak().
  [[nodiscard]] std::int64_t peak_bytes() const;
  void reset_peak();

 private:
  class CountingAllocator;
  std::unique_ptr<CountingAllocator> allocator_;
};

}  // namespace d9d
