// The P2P channels between the stages of different ranks: one link to each rank that has a neighbouring stage.
//
//   PeerLink       for ranks on one machine that can write each other's memory, and for threads of one process; on GPUs
//                  copy engines move the messages, and no host waits
//   ExchangeLink   for all other ranks, by Communicator::exchange
//
// In each direction between two ranks, messages are received in the order of the sender's program, and at most
// num_inbox_slots messages are in flight. While that many are, a send blocks on CPUs. On CUDA it returns immediately,
// and the stream that computed the message waits while that many messages have not been sent. No receive is posted
// before receive() is called.
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
#include "d9d/core/peer_memory/link_watch.h"
#include "d9d/pipelining/executor/neighbour_link.h"
#include "d9d/pipelining/program/stage_placement.h"
#include "d9d/pipelining/program/transfer.h"

namespace d9d {

struct StageLinksConfig {
  std::int64_t num_inbox_slots = 2;  // receive buffers of each direction
  ExchangeMethod method = ExchangeMethod::kAuto;
};

// The messages of a step between two ranks, in both directions.
struct LinkStep {
  std::int64_t largest_bytes = 0;  // message_bytes() of the largest message
  std::string transfers = {};      // all transfers, as text
};

class StageLinks {
 public:
  // Collective over the ranks of a pipeline. Opens the links in the same order on all ranks. Throws ConfigError, with
  // the reason, if `config` demands copy engines and two neighbours cannot write each other's memory.
  StageLinks(const DistContext& context, const StagePlacement& stages, const StageLinksConfig& config);

  // Collective. steps: the messages of each link, keyed by the other rank's index in the pipeline. Both ranks of a link
  // must pass the same messages.
  void begin_step(const std::map<std::int64_t, LinkStep>& steps);
  // Do what NeighbourLink says: send() and receive() on the link of the transfer, finish() and give_up() on all links.
  void send(const Transfer& transfer, const std::vector<at::Tensor>& leaves);
  [[nodiscard]] std::vector<at::Tensor> receive(const Transfer& transfer, const std::vector<at::Tensor>& like);
  void finish();
  void give_up();
  void close();  // collective over the ranks of a pipeline, as NeighbourLink::close()

 private:
  [[nodiscard]] std::unique_ptr<NeighbourLink> open(const DistContext& context, const std::vector<std::int64_t>& ranks,
                                                    std::int64_t peer, const StageLinksConfig& config);
  [[nodiscard]] NeighbourLink& link_for(const Transfer& transfer);

  StagePlacement stages_;
  std::int64_t rank_;                                             // this rank's index in the pipeline
  std::unique_ptr<LinkWatch> watch_;                              // null if no link needs it
  std::map<std::int64_t, std::unique_ptr<NeighbourLink>> links_;  // keyed by the other rank's index
};

}  // namespace d9d
