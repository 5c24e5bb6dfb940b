// An identity that runs an action when gradients pass through it: marks where a region of the graph begins or ends in
// backward.
//
// Example
//   on_backward({x, residual}, [&] { release_weights(); });   // after the backward of everything computed from them
//
// The identity is a node of its own, because a pre-hook on the node that computed a tensor would run again in the
// weight phase of a split backward.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

// Replaces each tensor that requires a gradient by an identity of it. `action` runs once in a backward: after the
// backward has computed the gradients of these tensors, and before it continues with the nodes that computed them.
// Returns false and does nothing if no tensor requires a gradient or grad mode is off.
bool on_backward(const std::vector<std::reference_wrapper<at::Tensor>>& tensors, std::function<void()> action);

// Calls `action` at the end of the backward that runs on this thread. May only be called inside a backward.
void at_end_of_backward(std::function<void()> action);

}  // namespace d9d
