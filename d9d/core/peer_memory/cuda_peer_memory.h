// Blocks of device memory that processes on one machine read from each other through CUDA's IPC.
#pragma once

#include "d9d/core/peer_memory/peer_memory.h"

namespace d9d {

// Collective. Each rank is a process of this machine. No memory is opened if CUDA refuses on any rank.
[[nodiscard]] PeerMemoryResult open_cuda_peer_memory(const std::shared_ptr<Communicator>& ranks, std::int64_t num_bytes,
                                                     std::int64_t num_shared_bytes);

}  // namespace d9d
