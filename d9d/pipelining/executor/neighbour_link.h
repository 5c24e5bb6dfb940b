// The P2P channel between this rank and one other rank of a pipeline, in both directions. In each direction messages
// are received in the order in which they are sent.
//
// Example
//   link.begin_step(largest_message, "stage 0 to 1: ...");      // Collective over the two ranks
//   link.send("the output of stage 0, microbatch 3", leaves);
//   leaves = link.receive("the gradients of stage 1, microbatch 3", like);
//   link.finish();
//
// `what` names the message in errors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

class NeighbourLink {
 public:
  NeighbourLink() = default;
  NeighbourLink(const NeighbourLink&) = delete;
  NeighbourLink& operator=(const NeighbourLink&) = delete;
  virtual ~NeighbourLink() = default;

  // Collective over the two ranks. num_bytes: at least the bytes of the step's largest message. transfers: all
  // transfers of the step in both directions, as text. Both arguments must be the same on the two ranks. If the ranks
  // share memory and the texts differ, begin_step() or finish() throws StateError.
  virtual void begin_step(std::int64_t num_bytes, const std::string& transfers) = 0;
  // Sends the leaves, which are on the device, as one message. The caller may drop them afterwards, and must not write
  // to them. CPU: blocks while as many messages are in flight as the link has receive buffers. CUDA: makes the current
  // stream wait while that many messages have not been sent.
  virtual void send(const std::string& what, const std::vector<at::Tensor>& leaves) = 0;
  // Returns the leaves of the next message. like: shapes and dtypes of the leaves, on any device. CPU: blocks until the
  // message is received. CUDA: makes the current stream wait for it.
  [[nodiscard]] virtual std::vector<at::Tensor> receive(const std::string& what,
                                                        const std::vector<at::Tensor>& like) = 0;
  // Waits until all messages are sent. CPU: blocks. CUDA: makes the current stream wait.
  virtual void finish() = 0;
  // Collective over the two ranks, between steps: gives inboxes back. The next begin_step() opens them again.
  virtual void close() {}
  // Local. Called after a step that threw: nothing is sent or received any more, and the destructor does not wait for
  // the other rank.
  virtual void give_up() {}
};

}  // namespace d9d
