// Refuses gradients of gradients. The backward passes of our ops are written by hand and are not differentiable
// themselves, so a second-order gradient would silently miss terms.
//
// Example
//   static variable_list backward(AutogradContext* context, variable_list grads) {
//     check_first_order("rms_norm");
//     ...
#pragma once

#include <c10/core/GradMode.h>

#include "d9d/base/check.h"

namespace d9d::kernels::detail {

// A backward calls this first. Throws UsageError if autograd records the backward (create_graph).
inline void check_first_order(const char* op) {
  D9D_CHECK(!c10::GradMode::is_enabled(), UsageError, "[kernels::", op,
            "] expected a first-order backward, got one with create_graph. Gradients of gradients are not built.");
}

}  // namespace d9d::kernels::detail
