// Carries transfers between this rank and one other rank of a pipeline, in both directions. In each direction messages
// arrive in the order in which they are sent.
//
// Example
//   link.begin_step(largest_message, "stage 0 to 1: ...");      // Collective over the two ranks
//   link.send("the output of stage 0, microbatch 3", leaves);
//   leaves = link.receive("the gradients of stage 1, microbatch 3", like);
//   link.finish();
//
// `what` is for error messages.
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

  // Collective over the two ranks. No message of the step is larger than `num_bytes`. transfers: all that will be sent
  // in both directions, as text. Both are the same on the two ranks; if they are not, begin_step() or finish() throws
  // StateError where the ranks share memory.
  virtual void begin_step(std::int64_t num_bytes, const std::string& transfers) = 0;
  // leaves: on the device. They may be dropped afterwards, and must not be written. CPUs: waits while as many messages
  // as the inbox holds are on their way. CUDA: the current stream waits while as many have not left.
  virtual void send(const std::string& what, const std::vector<at::Tensor>& leaves) = 0;
  // like: shapes and dtypes of the leaves, on any device. CPUs: waits until the message is there; CUDA: makes the
  // current stream wait.
  [[nodiscard]] virtual std::vector<at::Tensor> receive(const std::string& what,
                                                        const std::vector<at::Tensor>& like) = 0;
  // Waits until all messages have left, as receive() waits.
  virtual void finish() = 0;
  // Local, after a step that has not ended: nothing is sent or received any more, and the destructor waits for nobody.
  virtual void give_up() {}
};

}  // namespace d9d
