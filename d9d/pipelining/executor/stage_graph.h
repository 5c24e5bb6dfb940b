// The autograd graph of one microbatch on one stage, from which the values of its outputs are gone: an output may be
// dropped when it is sent, long before its gradient comes back.
//
// Example
//   StageGraph graph(outputs);
//   outputs.clear();
//   graph.backward(gradients);                  // leaves accumulate, and memory that backward needed is free again
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

// The tensors of a transfer that have gradients, in their order.
[[nodiscard]] std::vector<at::Tensor> differentiable(const std::vector<at::Tensor>& leaves);

class StageGraph {
 public:
  // Outputs without a graph are left out.
  explicit StageGraph(const std::vector<at::Tensor>& outputs);

  // Whether any output has a graph: otherwise backward() does nothing.
  [[nodiscard]] bool has_graph() const;
  // The next backward adds to the gradients of leaves on the current stream, which must be that of the graph's forward:
  // autograd adds on the stream of the first forward that used a leaf and still has its graph, and would make that one
  // wait for this backward. Local; not while a backward of a graph with the same leaves runs.
  void accumulate_on_current_stream() const;
  // Runs backward once. gradients: one an output, of its shape and dtype; where the output has no graph it is ignored.
  void backward(std::vector<at::Tensor> gradients);

 private:
  struct Roots;
  std::shared_ptr<Roots> roots_;
};

}  // namespace d9d
