// Carries transfers between this rank and one other rank of a pipeline, in both directions. In each direction messages
// arrive in the order in which they are sent.
//
// Example
//   link.reserve(largest_message);                    // Collective over the two ranks, once a step
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

  // Collective over the two ranks. No message from now on is larger than `num_bytes`, the same on both ranks.
  virtual void reserve(std::int64_t num_bytes) = 0;
  // leaves: on the device. They may be dropped afterwards, and must not be written. CPUs: waits while as many messages
  // as the inbox holds are on their way.
  virtual void send(const std::string& what, const std::vector<at::Tensor>& leaves) = 0;
  // like: shapes and dtypes of the leaves, on any device. CPUs: waits until the message is there; CUDA: makes the
  // current stream wait.
  [[nodiscard]] virtual std::vector<at::Tensor> receive(const std::string& what,
                                                        const std::vector<at::Tensor>& like) = 0;
  // Waits until all messages have left, as receive() waits.
  virtual void finish() = 0;
};

}  // namespace d9d
