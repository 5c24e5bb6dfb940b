#include "d9d/loop/component/task_binding.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {

TaskBinding::~TaskBinding() = default;

void check_built(bool is_built, const char* function, const char* what) {
  D9D_CHECK(is_built, StateError, "[loop::trainer] expected ", function, " to return ", what, ", got null.");
}

void copy_to(c10::Device device, const TensorRefs& tensors) {
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor = tensor.to(device, tensor.scalar_type(), /*non_blocking=*/true, /*copy=*/true);
  }
}

}  // namespace d9d
