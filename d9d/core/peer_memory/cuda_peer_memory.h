// Blocks of device memory of processes on one machine, which read each other's by CUDA's IPC.
#pragma once

#include "d9d/core/peer_memory/peer_memory.h"

namespace d9d {

// Collective. Each rank is a process of this machine; no memory where CUDA of one of them refuses.
[[nodiscard]] PeerMemoryResult open_cuda_peer_memory(const std::shared_ptr<Communicator>& ranks,
                                                     std::int64_t num_bytes);

}  // namespace d9d
