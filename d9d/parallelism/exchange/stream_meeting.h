// Streams of ranks that wait for each other by words in memory. No multiprocessor is taken: a waiting kernel of NCCL has
// one, and a product beside it, whose blocks need all, then takes up to twice as long.
//
// Example
//   StreamMeeting meeting(ranks, watch);
//   ...              // work that writes
//   meeting.meet();
//   ...              // work that reads what other ranks wrote before
#pragma once

#include <cstdint>
#include <memory>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/peer_memory/link_watch.h"
#include "d9d/parallelism/exchange/watched_peer_memory.h"

namespace d9d {

class StreamMeeting {
 public:
  // ranks: those of one machine that can read each other's memory.
  StreamMeeting(std::shared_ptr<Communicator> ranks, std::shared_ptr<LinkWatch> watch);

  // Collective; ranks must call it in the same order. What their current streams get later runs after all that they
  // have now. The hosts do not wait, but at the first call, and the first after close(). Throws if the group has failed;
  // if a rank does not come within the job's timeout, the group fails.
  void meet();
  void close() { memory_.close(); }  // Collective, when no meeting is outstanding. Gives the memory back.

 private:
  std::shared_ptr<Communicator> ranks_;
  std::shared_ptr<LinkWatch> watch_;
  WatchedPeerMemory memory_;
  std::int64_t num_meetings_ = 0;
};

}  // namespace d9d
