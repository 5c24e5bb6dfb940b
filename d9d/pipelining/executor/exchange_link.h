// A link that uses Communicator::exchange. A message is one tensor: the only tensor of a transfer, or a buffer into
// which all of its tensors are packed. A receive is posted when receive() is called, not earlier.
#pragma once

#include <deque>
#include <memory>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/device/kept_tensors.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/pipelining/executor/neighbour_link.h"

namespace d9d {

class ExchangeLink final : public NeighbourLink {
 public:
  // to_send, to_receive: communicators of {sender, receiver}. Each direction has a communicator of its own, so that
  // neither direction waits for the other.
  ExchangeLink(std::shared_ptr<Communicator> to_send, std::shared_ptr<Communicator> to_receive,
               std::int64_t num_inbox_slots);

  void begin_step(std::int64_t /*num_bytes*/, const std::string& /*transfers*/) override {}
  void send(const std::string& what, const std::vector<at::Tensor>& leaves) override;
  [[nodiscard]] std::vector<at::Tensor> receive(const std::string& what, const std::vector<at::Tensor>& like) override;
  void finish() override;

 private:
  struct Sent {
    at::Tensor message;
    Work work;
  };
  std::shared_ptr<Communicator> to_send_;
  std::shared_ptr<Communicator> to_receive_;
  c10::Device device_;
  std::int64_t num_inbox_slots_;
  SideStream sends_;
  SideStream receives_;
  std::deque<Sent> on_the_way_;  // sends on CPUs that may not have completed
  KeptTensors unsent_;           // messages on CUDA that a send may still read
};

}  // namespace d9d
