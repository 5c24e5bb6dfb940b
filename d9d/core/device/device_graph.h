// Device work that is recorded once and launched again with one call: a CUDA graph.
//
// Example
//   const MakeDeviceGraph make_graph = cuda_graphs(x.device());
//   SideStream(x.device()).run([&] {                     // not on the default stream
//     const auto graph = make_graph();
//     graph->capture([&] { y = model(x); });             // computes nothing
//     for (const at::Tensor& batch : batches) {
//       x.copy_(batch);
//       graph->replay();                                 // y is computed from this batch
//     }
//   }).wait();
#pragma once

#include <functional>
#include <memory>

#include <c10/core/Device.h>

namespace d9d {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  // Records the work that `work` enqueues on the current stream, also from autograd's threads, and computes nothing.
  // Its allocations come from the graph's own memory: tensors that outlive the capture keep their addresses and get new
  // values in each replay(); the memory of all others is reused. Kernels and libraries that it uses must have been used
  // before on this stream. May be called once for each graph. Throws StateError on the default stream; exceptions of
  // `work`; and LibTorch's error if `work` waits for the device or copies from memory that is not pinned. After an
  // exception the graph may only be destroyed.
  virtual void capture(const std::function<void()>& work) = 0;
  // Launches the recorded work on the current stream, with tensors at the same addresses.
  virtual void replay() = 0;
};

// Graphs of one factory share memory, so that together they need as much as the largest. Results of a replay must
// therefore be read before another graph is replayed. The memory is released when the last graph and its tensors are
// gone.
using MakeDeviceGraph = std::function<std::unique_ptr<DeviceGraph>()>;

// Throws ConfigError unless `device` is a CUDA device that can be used, and in a build without nvcc.
[[nodiscard]] MakeDeviceGraph cuda_graphs(c10::Device device);

}  // namespace d9d
