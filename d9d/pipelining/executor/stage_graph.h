// The autograd graph of one microbatch on one stage. It does not keep the values of the outputs: an output may be freed
// when it has been sent, long before its gradient is received.
//
// Example
//   StageGraph graph(outputs);
//   outputs.clear();
//   graph.backward(gradients);                  // accumulates in the leaves and frees the memory that backward needed
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

// Returns the tensors of a transfer that can have gradients (floating-point and complex ones), in their order.
[[nodiscard]] std::vector<at::Tensor> differentiable(const std::vector<at::Tensor>& leaves);

class StageGraph {
 public:
  // Keeps the graphs of all outputs that have one.
  explicit StageGraph(const std::vector<at::Tensor>& outputs);

  // Returns whether any output has a graph. If no output has one, backward() does nothing.
  [[nodiscard]] bool has_graph() const;
  // Makes the next backward accumulate the gradients of leaves on the current stream, which must be the stream of the
  // graph's forward. Without this call autograd would accumulate on the stream of the first forward that used a leaf
  // and whose graph still exists, and make that stream wait for this backward. Local; must not run at the same time as
  // a backward of a graph with the same leaves.
  void accumulate_on_current_stream() const;
  // Runs the backward; a second call does nothing. gradients: one for each output, with its shape and dtype; ignored if
  // the output has no graph.
  void backward(std::vector<at::Tensor> gradients);

 private:
  struct Roots;
  std::shared_ptr<Roots> roots_;
};

}  // namespace d9d
