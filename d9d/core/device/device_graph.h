// Work of a device that is recorded once and given to it again with one call: a CUDA graph.
//
// Example
//   const MakeDeviceGraph make_graph = cuda_graphs(x.device());
//   SideStream(x.device()).run([&] {                     // not on the default stream
//     const auto graph = make_graph();
//     graph->capture([&] { y = model(x); });             // computes nothing
//     for (const at::Tensor& batch : batches) {
//       x.copy_(batch);
//       graph->replay();                                 // y is of this batch
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

  // Records what `work` gives to the current stream, also from autograd's threads, and computes nothing. What it
  // allocates comes from the graph's own memory: tensors that live on keep their place and get new values by each
  // replay(), all others are overwritten. Kernels and libraries that it uses have been used before on this stream. Once
  // a graph. Throws StateError on the default stream; what `work` throws; LibTorch's error where it waits for the
  // device or copies from memory that is not pinned. After an exception the graph is only destroyed.
  virtual void capture(const std::function<void()>& work) = 0;
  // Gives what was recorded to the current stream, with tensors at the same places.
  virtual void replay() = 0;
};

// Graphs of one factory share memory, so that several take as much as the largest: what a replay computes is read
// before the next replay of another. The memory is given back when the last of them and its tensors are gone.
using MakeDeviceGraph = std::function<std::unique_ptr<DeviceGraph>()>;

// Throws ConfigError without such a device, and in a build without nvcc.
[[nodiscard]] MakeDeviceGraph cuda_graphs(c10::Device device);

}  // namespace d9d
