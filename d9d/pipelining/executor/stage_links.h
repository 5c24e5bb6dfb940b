// Carries transfers between the stages of different ranks, by Communicator::exchange. A message is one tensor: the only
// one of a transfer, or all of them packed.
//
// Each directed link is a communicator of its own, and carries messages in the order of the sender's program. A send
// returns at once; on CPUs it first waits until fewer than num_inbox_slots of the link's messages are on their way. A
// message is received when it is used.
//
// Example
//   StageLinks links(context, stages, /*num_inbox_slots=*/2);
//   links.send(transfer, leaves);                                       // on the sender
//   leaves = links.receive(transfer, like);                             // on the receiver
//   links.finish();
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/pipelining/program/stage_placement.h"
#include "d9d/pipelining/program/transfer.h"

namespace d9d {

class StageLinks {
 public:
  // Collective over the ranks of a pipeline: makes the communicators, on all ranks in one order.
  StageLinks(const DistContext& context, const StagePlacement& stages, std::int64_t num_inbox_slots);

  // leaves: on the context's device. They may be dropped afterwards, and must not be written.
  void send(const Transfer& transfer, const std::vector<at::Tensor>& leaves);
  // like: shapes and dtypes of the leaves, on any device. CPUs: waits until the message is there; CUDA: makes the
  // current stream wait.
  [[nodiscard]] std::vector<at::Tensor> receive(const Transfer& transfer, const std::vector<at::Tensor>& like);
  // Waits until all messages have left, as receive() waits.
  void finish();

 private:
  struct Sent {
    at::Tensor message;
    Work work;
  };
  struct Link {
    std::shared_ptr<Communicator> ranks;  // {sender, receiver}
    SideStream stream;
    std::deque<Sent> on_the_way = {};  // on CPUs
  };
  [[nodiscard]] Link& link_for(const Transfer& transfer);

  StagePlacement stages_;
  c10::Device device_;
  std::int64_t num_inbox_slots_;
  std::map<DirectedLink, Link> links_;  // those of this rank
};

}  // namespace d9d
