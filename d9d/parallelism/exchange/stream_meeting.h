// Streams of ranks that wait for each other by words in memory. No multiprocessor is taken: a waiting kernel of NCCL
// has one, and a product beside it, whose blocks need all, then takes longer.
//
// Example
//   StreamMeeting meeting(ranks, watch);
//   if (!meeting.can_meet()) log.info(meeting.reason());
//   ...              // work that writes
//   meeting.meet();
//   ...              // work that reads what other ranks wrote before
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/peer_memory/link_watch.h"
#include "d9d/parallelism/exchange/watched_peer_memory.h"

namespace d9d {

class StreamMeeting {
 public:
  // ranks: those of one machine that can read each other's memory.
  StreamMeeting(std::shared_ptr<Communicator> ranks, std::shared_ptr<LinkWatch> watch);

  // Collective. Whether the ranks share words. Opens them at the first call, and at the first after close(); the hosts
  // wait then.
  [[nodiscard]] bool can_meet() { return memory_.fits(/*num_bytes=*/1); }
  [[nodiscard]] const std::string& reason() const { return memory_.reason(); }  // why they do not; empty if they do
  // Collective; ranks must call it in the same order. What their current streams get later runs after all that they
  // have now. The hosts do not wait, unless words must be opened. Throws StateError if the ranks cannot meet, and
  // CommunicationError if the group has failed; if a rank does not come within the job's timeout, the group fails.
  void meet();
  void close() { memory_.close(); }  // Collective, when no meeting is outstanding. Gives the memory back.

 private:
  std::shared_ptr<Communicator> ranks_;
  std::shared_ptr<LinkWatch> watch_;
  WatchedPeerMemory memory_;
  std::int64_t num_meetings_ = 0;
};

}  // namespace d9d
