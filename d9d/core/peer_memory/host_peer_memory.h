// Peer memory of ranks that are threads of one process: each rank holds the tensors of all ranks.
#pragma once

#include "d9d/core/peer_memory/peer_memory.h"

namespace d9d {

// Collective. All ranks of the group are threads of this process.
[[nodiscard]] std::shared_ptr<PeerMemory> open_host_peer_memory(const std::shared_ptr<Communicator>& ranks,
                                                                std::int64_t num_bytes, std::int64_t num_shared_bytes);

}  // namespace d9d
