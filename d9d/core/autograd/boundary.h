// Identity with something to do when gradients pass: where a region of the graph begins or ends in backward.
//
// Example
//   on_backward({x, residual}, [&] { release_weights(); });   // after all that was computed from them went backward
//
// A node of its own, because a pre-hook on the node that made a tensor would run again in the weight phase of a split
// backward.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d {

// Replaces the tensors that require gradients by identities of them. `action` runs once in a backward, before their
// gradients go on, when the gradients of all that the backward reaches have come. Returns false, and nothing was done,
// if no tensor requires one.
bool on_backward(const std::vector<std::reference_wrapper<at::Tensor>>& tensors, std::function<void()> action);

// Calls `action` when the backward that runs on this thread is over. Only inside a backward.
void at_end_of_backward(std::function<void()> action);

}  // namespace d9d
