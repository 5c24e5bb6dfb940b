// How ranks that are processes come together: through a store at host:port of rank 0, which the launcher or rank 0
// hosts.
//
// Example
//   if (const auto here = rank_environment()) {
//     World world(connect_ranks(*here, {.device = device, .job = "mesh: dp_shard 4"}));
//   }
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "d9d/core/communicator/world.h"
#include "d9d/core/launch/rank_environment.h"

namespace d9d {

struct RendezvousOptions {
  at::Device device = at::kCPU;  // Gloo for CPU, NCCL for CUDA (with an index)
  std::string job;               // must be the same on all ranks: what they are about to do, in a few words
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // until all have come
};

// Collective over all ranks of the job. Throws one line that names host:port, within the timeout: CommunicationError
// when the port is taken, rank 0 out of reach, ranks missing, or a rank came with another WORLD_SIZE or job; on ranks
// that only hear of it, PeerFailedError.
//
// From here on the process ignores SIGPIPE, unless it handles it already: a connection to a rank that has ended is an
// error of the operation.
//
// A rank that hosts the store waits in the destructor of the result for the others to leave theirs: 10 s at most, 2 s
// during an exception.
[[nodiscard]] std::unique_ptr<CommunicatorBackend> connect_ranks(const RankEnvironment& here,
                                                                 const RendezvousOptions& options);

}  // namespace d9d
