// Peer memory of ranks on the meta device, which stand for ranks of one machine: its block is a tensor whose bytes are
// counted, and nothing is copied or waited for.
#pragma once

#include "d9d/core/peer_memory/peer_memory.h"

namespace d9d {

[[nodiscard]] std::shared_ptr<PeerMemory> open_meta_peer_memory(std::int64_t num_bytes, std::int64_t num_shared_bytes);

}  // namespace d9d
