// A block of memory of each rank of a group that the other ranks read by themselves, while its owner computes.
//
//   CUDA   one process a rank, all on one machine: copy engines read over NVLink or PCIe and take no multiprocessor
//   CPU    ranks that are threads of one process
//
// Example
//   const PeerMemoryResult result = open_peer_memory(*ranks, /*num_bytes=*/1 << 20);    // Collective
//   if (result.memory == nullptr) log.info("no peer memory: ", result.reason);          // on all ranks
//   result.memory->own().fill_(1);
//   ranks->all_reduce(token, ReduceOp::kSum).wait();          // whoever comes after this reads what all have written
//   result.memory->read(target, /*rank=*/1, /*offset=*/256);
//   ranks->all_reduce(token, ReduceOp::kSum).wait();          // whoever comes after this may write again
//
// Nothing here orders writers and readers: that is the caller's, as above.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"

namespace d9d {

class PeerMemory {
 public:
  PeerMemory() = default;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  // Local. Without close(), what the ranks hold of each other's blocks stays to the end of the process.
  virtual ~PeerMemory() = default;

  // This rank's block: kByte [num_bytes], zeros. Its memory goes with its storage, once it was closed.
  [[nodiscard]] virtual const at::Tensor& own() const = 0;
  // target <- as many bytes of the block of `rank` (in the group; this rank too) from byte `offset` on. target is
  // contiguous, on the device. On the current stream. Local; throws StateError when CUDA refuses.
  virtual void read(const at::Tensor& target, std::int64_t rank, std::int64_t offset) const = 0;
  // Collective; the host waits for the current stream, which comes after all reads. Gives back the blocks of the
  // others; read() is over.
  virtual void close() = 0;
};

struct PeerMemoryResult {
  std::shared_ptr<PeerMemory> memory;  // null: the ranks cannot read each other's memory
  std::string reason;                  // why not; the same on all ranks
};

// Collective; the host waits. Keeps a reference to `ranks`. num_bytes: the same on all ranks, > 0.
[[nodiscard]] PeerMemoryResult open_peer_memory(const std::shared_ptr<Communicator>& ranks, std::int64_t num_bytes);

}  // namespace d9d
