// A block of memory on each rank of a group, which the other ranks read and write while the owner computes, and words
// in shared host memory, which serve as flags: ranks set them to signal that they have read or written.
//
//   CUDA   one process a rank, all on one machine: copy engines read and write over NVLink or PCIe and use no
//          multiprocessor; streams wait for words, never the host
//   CPU    ranks that are threads of one process
//   meta   the one rank of a plan: bytes that are counted, and no copies
//
// Words are in host memory, so that a host can end the wait of a stream whatever the devices and the other ranks do. A
// device's own write might be queued behind that wait in the same hardware queue.
//
// Example
//   const PeerMemoryResult result = open_peer_memory(*ranks, /*num_bytes=*/1 << 20);    // Collective
//   if (result.memory == nullptr) log.info("no peer memory: ", result.reason);          // on all ranks
//   result.memory->own().fill_(1);
//   ranks->all_reduce(token, ReduceOp::kSum).wait();          // reads after this see what all ranks have written
//   result.memory->read(target, /*rank=*/1, /*offset=*/256);
//   ranks->all_reduce(token, ReduceOp::kSum).wait();          // after this ranks may write again
//
// Only raise() and wait_for() order writers and readers. The caller must establish the order, as in the example above
// or as follows:
//
//   result.memory->write(message, /*rank=*/1, /*offset=*/256);
//   result.memory->raise(/*word=*/0, /*value=*/1);             // after the write above
//   result.memory->wait_for(/*word=*/0, /*value=*/1);          // on rank 1: the message is complete
#pragma once

#include <cstddef>
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
  // Local. Without close() or leave(), mappings of the other ranks' blocks stay until the process ends.
  virtual ~PeerMemory() = default;

  // This rank's block: kByte [num_bytes], initially zeros. After close() its memory is freed with its storage.
  [[nodiscard]] virtual const at::Tensor& own() const = 0;
  // Local. Copies to target as many bytes as it has from the block of `rank` (a rank of the group; may be this rank),
  // beginning at byte `offset`. target is contiguous and on the device. Runs on the current stream. Throws StateError
  // if CUDA refuses.
  virtual void read(const at::Tensor& target, std::int64_t rank, std::int64_t offset) const = 0;
  // Local. Copies source to the block of `rank`, beginning at byte `offset`; otherwise like read().
  virtual void write(const at::Tensor& source, std::int64_t rank, std::int64_t offset) const = 0;
  // Host memory that all ranks of the group see, [num_shared_bytes], initially zeros; valid while this object is. It
  // contains the words, each at a multiple of 4, and other data that hosts exchange.
  [[nodiscard]] virtual std::byte* shared() const = 0;
  // Local. Sets the word (4 bytes) at `word` of shared(). Runs on the current stream; a rank that sees the value also
  // sees all earlier writes of the stream.
  virtual void raise(std::int64_t word, std::uint32_t value) const = 0;
  // Local. Sets the word immediately, from the host and from any thread.
  virtual void raise_at_once(std::int64_t word, std::uint32_t value) const = 0;
  // Local. Waits until the word at `word` of shared() is `value` or one of the 2^31 values after it: numbers may wrap.
  // CUDA: the current stream waits, without a limit of time, whatever happens to the rank that would write. CPU: the
  // host waits; throws CommunicationError if the group fails.
  virtual void wait_for(std::int64_t word, std::uint32_t value) const = 0;
  // Local. Whether wait_for() with these arguments would not wait. May be called on any thread; does not ask the
  // device.
  [[nodiscard]] virtual bool is_raised(std::int64_t word, std::uint32_t value) const = 0;
  // Collective. The host waits for the current stream, which must have all earlier calls of this object. Releases the
  // blocks of the other ranks; only own(), is_raised() and raise_at_once() may be called afterwards.
  virtual void close() = 0;
  // Local; only for memory with shared bytes. Does the work of close() for ranks that do not end at the same time. Work
  // of this rank that uses blocks of others must have ended. After all ranks have left, a block is freed at the latest
  // at the next leave() or open_peer_memory() of its owner.
  virtual void leave() = 0;
};

struct PeerMemoryResult {
  std::shared_ptr<PeerMemory> memory;  // null: the ranks cannot read each other's memory
  std::string reason;                  // why not; the same on all ranks
};

// Collective. The host waits. Keeps a reference to `ranks`. num_bytes: the same on all ranks, > 0; so is
// num_shared_bytes, >= 0.
[[nodiscard]] PeerMemoryResult open_peer_memory(const std::shared_ptr<Communicator>& ranks, std::int64_t num_bytes,
                                                std::int64_t num_shared_bytes = 0);

}  // namespace d9d
