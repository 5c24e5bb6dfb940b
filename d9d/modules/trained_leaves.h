// The leaves of a module that backward gives gradients: those that a pipeline's I may leave to W.
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
