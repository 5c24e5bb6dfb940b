#include "d9d/kernels/common/cuda_kernels.h"

#include "d9d/base/check.h"
#include "d9d/core/device/cuda_library.h"
#include "d9d/core/device/cuda_runtime.h"
#include "d9d/core/dtype/scalar_type.h"

namespace d9d::kernels::detail {

bool has_cuda_kernels(c10::Device device) { return device.is_cuda() && is_built_with_cuda() && is_hopper(device); }

bool has_cuda_kernels(const at::TensorBase& tensor) {
  return has_cuda_kernels(tensor.device()) && find_dtype(tensor.scalar_type()).has_value();
}

Dtype dtype_of(const at::TensorBase& tensor) {
  const auto dtype = find_dtype(tensor.scalar_type());
  D9D_ASSERT(dtype.has_value(), "no kernels for ", tensor.scalar_type());
  return *dtype;
}

}  // namespace d9d::kernels::detail
