// Whether a forward outside of a step writes what it computes with from what is stored: copies of tied parameters,
// parameters in the dtype of the computation. The program may have changed what is stored, and the graph of an earlier
// forward may still need the values: autograd refuses its backward after any write, also of equal values.
//
// Example
//   if (is_stale(parameter->local(), parameter->stored())) update_local({parameter});
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d {

// Local. Whether target.copy_(values) changes target. Without recording of gradients, where no comparison is to cost
// time, always. Otherwise waits for the device.
[[nodiscard]] bool is_stale(const at::Tensor& target, const at::Tensor& values);

}  // namespace d9d
