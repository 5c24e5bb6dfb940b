#include "d9d/base/check.h"
#include "d9d/core/device/cuda_graph.h"
#include "d9d/core/device/cuda_runtime.h"
#include "d9d/core/device/cuda_stream.h"

namespace d9d {
namespace {

// Checks preconditions first, because errors of the library, which does not use our error types, are less clear.
class CheckedGraph final : public DeviceGraph {
 public:
  CheckedGraph(std::unique_ptr<DeviceGraph> graph, c10::Device device) : graph_(std::move(graph)), device_(device) {}

  void capture(const std::function<void()>& work) override {
    D9D_CHECK(current_cuda_stream(device_) != nullptr, StateError,
              "[core::device_graph] expected a stream that is not the default one of ", device_.str(),
              ", got that. Capture inside SideStream::run.");
    graph_->capture(work);
  }
  void replay() override { graph_->replay(); }

 private:
  std::unique_ptr<DeviceGraph> graph_;
  c10::Device device_;
};

}  // namespace

MakeDeviceGraph cuda_graphs(c10::Device device) {
  D9D_CHECK(device.is_cuda() && load_cuda(), ConfigError, "[core::device_graph] expected a CUDA device, got ",
            device.str(), ". Graphs are of CUDA devices.");
  MakeDeviceGraph make_graph;
  make_cuda_graphs(make_graph, device);
  return [make_graph, device] { return std::make_unique<CheckedGraph>(make_graph(), device); };
}

}  // namespace d9d
