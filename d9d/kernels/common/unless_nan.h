// Undoes an in-place update on the device where a factor is NaN: for factors on a device, whose value the host does not
// know.
//
// Example
//   update_unless_nan(grad_scale, {parameter, exp_avg}, [&] { parameter.sub_(grad * grad_scale); });
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d::kernels::detail {

// Runs `update`, which writes to `tensors`; undefined ones are left out. If `factor`, 0-dim, is NaN, they get their
// values from before.
void update_unless_nan(const at::Tensor& factor, const std::vector<at::Tensor>& tensors,
                       const std::function<void()>& update);

}  // namespace d9d::kernels::detail
