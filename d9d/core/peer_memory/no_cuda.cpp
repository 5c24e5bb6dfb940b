#include "d9d/core/peer_memory/cuda_peer_memory.h"

namespace d9d {

PeerMemoryResult open_cuda_peer_memory(const std::shared_ptr<Communicator>& /*ranks*/, std::int64_t /*num_bytes*/,
                                       std::int64_t /*num_shared_bytes*/) {
  return {.memory = nullptr, .reason = "this build has no CUDA"};
}

}  // namespace d9d
