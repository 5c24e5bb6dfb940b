// Carries transfers between the stages of different ranks: a link to each rank that has a neighbouring stage.
//
//   PeerLink       ranks on one machine that can write each other's memory: copies that no multiprocessor and no host
//                  waits for; threads of one process likewise
//   ExchangeLink   others: Communicator::exchange
//
// In each direction between two ranks messages arrive in the order of the sender's program. At most num_inbox_slots
// messages are on their way: on CPUs a send waits for that; on CUDA it returns at once, and the stream that made the
// message waits while as many have not left. A message is received when it is used.
//
// Example
//   StageLinks links(context, stages, {.num_inbox_slots = 2});
//   links.begin_step({{1, {.largest_bytes = 1 << 20, .transfers = "stage 0 to 1: ..."}}});      // Collective
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

// Of the messages of a step between two ranks, in both directions.
struct LinkStep {
  std::int64_t largest_bytes = 0;  // message_bytes()
  std::string transfers = {};      // all of them, as text
};

class StageLinks {
 public:
  // Collective over the ranks of a pipeline: makes the links, on all ranks in one order. Throws ConfigError, with the
  // reason, if copies are asked for and impossible.
  StageLinks(const DistContext& context, const StagePlacement& stages, const StageLinksConfig& config);

  // Collective. steps: what goes over each link of this rank, by the other's rank in the pipeline; the same on both.
  void begin_step(const std::map<std::int64_t, LinkStep>& steps);
  // See NeighbourLink.
  void send(const Transfer& transfer, const std::vector<at::Tensor>& leaves);
  [[nodiscard]] std::vector<at::Tensor> receive(const Transfer& transfer, const std::vector<at::Tensor>& like);
  void finish();
  void give_up();

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
