#include "d9d/loop/component/task_binding.h"

#include <ATen/ATen.h>

namespace d9d {

TaskBinding::~TaskBinding() = default;

void move_to(c10::Device device, const TensorRefs& tensors) {
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor = tensor.to(device, tensor.scalar_type(), /*non_blocking=*/true);
  }
}

}  // namespace d9d
