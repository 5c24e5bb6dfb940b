// Carries transfers between the stages of different ranks: a link to each rank that has a neighbouring stage.
//
//   PeerLink       ranks on one machine that can write each other's memory: copies that no multiprocessor and no host
//                  waits for; threads of one process likewise
//   ExchangeLink   others: Communicator::exchange
//
// In each direction between two ranks messages arrive in the order of the sender's program. A send returns at once; on
// CPUs it first waits until fewer than num_inbox_slots messages are on their way. A message is received when it is
// used.
//
// Example
//   StageLinks links(context, stages, {.num_inbox_slots = 2});
//   links.reserve(largest);                                             // Collective, before the messages of a step
//   links.send(transfer, leaves);                                       // on the sender
//   leaves = links.receive(transfer, like);                             // on the receiver
//   links.finish();
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/peer_memory/exchange_method.h"
#include "d9d/pipelining/executor/link_watch.h"
#include "d9d/pipelining/executor/neighbour_link.h"
#include "d9d/pipelining/program/stage_placement.h"
#include "d9d/pipelining/program/transfer.h"

namespace d9d {

struct StageLinksConfig {
  std::int64_t num_inbox_slots = 2;  // messages of a direction that may be on their way
  ExchangeMethod method = ExchangeMethod::kAuto;
};

class StageLinks {
 public:
  // Collective over the ranks of a pipeline: makes the links, on all ranks in one order. Throws ConfigError, with the
  // reason, if copies are asked for and impossible.
  StageLinks(const DistContext& context, const StagePlacement& stages, const StageLinksConfig& config);

  // Collective. num_bytes: of the largest message of each direction (message_bytes) from now on, the same on both
  // ranks.
  void reserve(const std::map<DirectedLink, std::int64_t>& num_bytes);
  // See NeighbourLink.
  void send(const Transfer& transfer, const std::vector<at::Tensor>& leaves);
  [[nodiscard]] std::vector<at::Tensor> receive(const Transfer& transfer, const std::vector<at::Tensor>& like);
  void finish();

 private:
  [[nodiscard]] std::unique_ptr<NeighbourLink> open(const DistContext& context, const std::vector<std::int64_t>& ranks,
                                                    std::int64_t peer, const StageLinksConfig& config);
  [[nodiscard]] NeighbourLink& link_for(const Transfer& transfer);

  StagePlacement stages_;
  std::int64_t rank_;                                             // in the pipeline
  std::unique_ptr<LinkWatch> watch_;                              // where a link needs it
  std::map<std::int64_t, std::unique_ptr<NeighbourLink>> links_;  // by rank in the pipeline
};

}  // namespace d9d
