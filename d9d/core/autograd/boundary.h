// Inserts an identity operator into the autograd graph and runs an action when gradients pass through the operator.
// This shows when backward enters or leaves a region of the graph.
//
// Example
//   on_backward({x, residual}, [&] { release_weights(); });   // after the backward of everything computed from them
//
// All tensors of a call share one autograd node, so the action runs once, when the gradients of all of them are ready.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

// Replaces each tensor that requires a gradient by an identity of it. `action` runs once in a backward: after autograd
// has computed all gradients of these identities that the backward needs, and before autograd passes them on to the
// original tensors. Returns false and does nothing if no tensor requires a gradient or grad mode is off.
bool on_backward(const std::vector<std::reference_wrapper<at::Tensor>>& tensors, std::function<void()> action);

// Calls `action` at the end of the backward that runs on this thread. May only be called inside a backward.
void at_end_of_backward(std::function<void()> action);

}  // namespace d9d
