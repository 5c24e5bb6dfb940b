#include "d9d/kernels/device/cuda_kernels.h"

#include <array>
#include <atomic>

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_runtime.h"
#include "d9d/kernels/device/built_with_cuda.h"

namespace d9d::kernels::detail {
namespace {

constexpr int kHopper = 9;

// Asks the driver once a device: every operator calls this.
int capability_major(c10::Device device) {
  static std::array<std::atomic<int>, 64> known{};  // lint: allow(mutable-global): facts of the machine
  std::atomic<int>& major = known.at(static_cast<std::size_t>(device.index()));
  if (major == 0) major = cuda_capability_major(device);
  return major;
}

}  // namespace

bool has_cuda_kernels(c10::Device device) {
  return device.is_cuda() && is_built_with_cuda() && capability_major(device) == kHopper;
}

bool has_cuda_kernels(const at::TensorBase& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
    case at::kFloat:
    case at::kBFloat16:
    case at::kHalf:
      return has_cuda_kernels(tensor.device());
    default:
      return false;
  }
}

Dtype dtype_of(const at::TensorBase& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return Dtype::kFloat64;
    case at::kFloat:
      return Dtype::kFloat32;
    case at::kBFloat16:
      return Dtype::kBFloat16;
    case at::kHalf:
      return Dtype::kFloat16;
    default:
      throw InternalError(cat("[bug] no kernels for ", tensor.scalar_type(), ". Ask has_cuda_kernels first."));
  }
}

}  // namespace d9d::kernels::detail
