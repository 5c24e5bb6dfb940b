// The leaves of a module that get gradients in backward: those whose gradients the I of a pipeline may defer to W.
//
// Example
//   DeferredGradients deferred(trained_leaves(*stage));
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/modules/module.h"

namespace d9d {

[[nodiscard]] std::vector<at::Tensor> trained_leaves(const Module& module);

}  // namespace d9d
