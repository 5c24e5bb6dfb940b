// Device graphs by LibTorch's CUDAGraph.
#include "d9d/core/device/cuda_graph.h"

#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

namespace d9d {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

class TorchGraph final : public DeviceGraph {
 public:
  TorchGraph(c10::Device device, c10::MempoolId_t pool) : device_(device), pool_(pool) {}

  void capture(const std::function<void()>& work) override {
    const c10::cuda::CUDAGuard guard(device_);
    allocator::emptyCache();  // frees memory of earlier runs of the same work, which the graph's pool cannot reuse
    // Thread-local mode: CUDA calls of other threads (a data loader that pins memory, a watchdog that queries events)
    // do not invalidate the capture.
    graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      abandon();
      throw;
    }
    try {
      graph_.capture_end();
    } catch (...) {
      abandon();
      throw;
    }
  }

  void replay() override { graph_.replay(); }

 private:
  // Ends a capture that failed. LibTorch itself would leave its allocators in capture mode.
  void abandon() {
    try {
      graph_.capture_end();
    } catch (const c10::Error&) {
      (void)cudaGetLastError();
    }
    try {
      allocator::endAllocateToPool(device_.index(), pool_);
      allocator::releasePool(device_.index(), pool_);
      at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool_);
      at::getHostAllocator(at::kCUDA)->release_pool(pool_);
    } catch (const c10::Error&) {  // the capture had ended already: the graph releases the memory
    }
  }

  c10::Device device_;
  c10::MempoolId_t pool_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace
}  // namespace d9d

extern "C" __attribute__((visibility("default"))) void d9d_make_cuda_graphs(d9d::MakeDeviceGraph& result,
                                                                            c10::Device device) {
  result = [device, pool = at::cuda::graph_pool_handle()] { return std::make_unique<d9d::TorchGraph>(device, pool); };
}
