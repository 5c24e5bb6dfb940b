// Connects ranks that are processes. They meet through a store at host:port of rank 0, which the launcher or rank 0
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

#include "d9d/base/log.h"
#include "d9d/core/communicator/world.h"
#include "d9d/core/launch/rank_environment.h"

namespace d9d {

inline constexpr std::chrono::minutes kRendezvousTimeout{5};  // default of programs without init_timeout

struct RendezvousOptions {
  at::Device device = at::kCPU;  // Gloo for CPU, NCCL for CUDA (with an index)
  std::string job;               // a short description of the job, which must be the same on all ranks
  std::chrono::milliseconds timeout = kRendezvousTimeout;       // until all ranks have arrived
  std::chrono::milliseconds silence = std::chrono::seconds(5);  // before the first line about a wait; later 1 min
  Logger log = Logger();
};

// Collective over all ranks of the job. Throws within the timeout, with one line that names host:port:
// CommunicationError if the port is taken, rank 0 cannot be reached, ranks are missing, or a rank has another
// WORLD_SIZE or job; PeerFailedError on ranks that are only informed of it. While they wait, one rank of each machine
// logs for whom it waits.
//
// From this call on the process ignores SIGPIPE, unless it handles it already: a write to a rank that has ended fails
// with an error of the operation.
//
// On the rank that hosts the store, the destructor of the result waits until the other ranks have destroyed theirs:
// at most 10 s, or 2 s during an exception.
[[nodiscard]] std::unique_ptr<CommunicatorBackend> connect_ranks(const RankEnvironment& here,
                                                                 const RendezvousOptions& options);

}  // namespace d9d
