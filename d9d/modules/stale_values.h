// Decides whether a forward outside of a step must refresh the values it computes with (copies of tied parameters,
// parameters in the compute dtype) from the stored values. The program may have changed the stored values, so copying
// may be needed; but the graph of an earlier forward may still need the old values, and autograd refuses its backward
// after any write, even of equal values.
//
// Example
//   if (is_stale(parameter->local(), parameter->stored())) update_local({parameter});
#pragma once

#include <ATen/core/Tensor.h>

namespace d9d {

// Local. Whether target.copy_(values) would change target. Without grad mode it always returns true, to save the time
// of a comparison; otherwise it waits for the device.
[[nodiscard]] bool is_stale(const at::Tensor& target, const at::Tensor& values);

}  // namespace d9d
