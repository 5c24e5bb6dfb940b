// Decides from the configuration and the ranks whether slices are exchanged by copies from the memory of peers.
//
// Example
//   const PeerExchange found = open_peer_exchange(config.gather, "gather", ranks, num_bytes, watch);
//   log.info(found.peers ? copies_description(*ranks) : cat("by all_gather: ", found.reason));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/peer_memory/link_watch.h"
#include "d9d/core/peer_memory/peer_memory.h"
#include "d9d/parallelism/exchange/stream_meeting.h"
#include "d9d/parallelism/fsdp/fsdp_config.h"

namespace d9d {

struct PeerExchange {
  std::shared_ptr<PeerMemory> peers;       // null: slices are exchanged by the communicator
  std::unique_ptr<StreamMeeting> meeting;  // of the streams that exchange; null if there are no peers
  std::string reason;                      // why there are no peers
};

// Opens peer memory and words to meet by if `method` allows copies and they are possible. Collective. key: the key of
// the configuration, for errors. num_bytes: the bytes that each rank shares; 0 if all parameters are frozen. Throws
// ConfigError, with the reason, if `method` demands copies and they are impossible.
[[nodiscard]] PeerExchange open_peer_exchange(ExchangeMethod method, std::string_view key,
                                              const std::shared_ptr<Communicator>& ranks, std::int64_t num_bytes,
                                              std::shared_ptr<LinkWatch> watch);

[[nodiscard]] std::string copies_description(const Communicator& ranks);  // for the log

}  // namespace d9d
