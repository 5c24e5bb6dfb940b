// Shared by tests of blocks over several ranks: numbers that are the same on all ranks, and parts of tensors that one
// rank holds whole.
#pragma once

#include <memory>
#include <string>

#include <ATen/ATen.h>

#include "d9d/modules/module.h"

#include "tests/support/compare.h"
#include "tests/support/ranks.h"

namespace d9d::test {

[[nodiscard]] inline at::Tensor values(at::IntArrayRef shape, double seed) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble) * 0.7 + seed).view(shape);
}

[[nodiscard]] inline DeviceMesh mesh_of(World& world, const std::string& axis) {
  return DeviceMesh("dense", {{axis, world.size()}}, borrowed(world));
}

template <class T>
ModulePtr<T> initialized(const ModulePtr<T>& module, at::ScalarType dtype = at::kDouble) {
  module->to(dtype);
  module->materialize(at::kCPU);
  module->reset_parameters(/*base_seed=*/5);
  return module;
}

// This rank's part of a tensor that all ranks hold.
[[nodiscard]] inline at::Tensor part(const at::Tensor& whole, std::int64_t dim, const World& world) {
  return whole.chunk(world.size(), dim)[static_cast<std::size_t>(world.rank())];
}
[[nodiscard]] inline at::Tensor leaf_part(const at::Tensor& whole, std::int64_t dim, const World& world) {
  return part(whole.detach(), dim, world).clone().requires_grad_();
}

// Compares a module's gradients over the ranks of a mesh with those on one rank; Partial gradients are summed,
// of which a rank that does not use its parameter has none.
inline void expect_gradients(const Module& actual, const Module& expected, const DeviceMesh& mesh,
                             const Tolerance& tolerance) {
  const auto theirs = expected.named_parameters();
  const auto ours = actual.named_parameters();
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const Parameter& parameter = *ours[i].second;
    const at::Tensor& own = parameter.local().grad();
    at::Tensor grad = own.defined() ? own.clone() : at::zeros_like(parameter.local());
    const bool is_partial = std::holds_alternative<Partial>(parameter.gradient_placements().front());
    if (is_partial) mesh.communicator()->all_reduce(grad, ReduceOp::kSum).wait();
    const LocalBox box = local_box(parameter.global_shape(), parameter.mesh(), parameter.placements());
    at::Tensor whole = theirs[i].second->local().grad();
    const double scale = largest_magnitude(whole);
    for (std::size_t dim = 0; dim < box.start.size(); ++dim) {
      whole = whole.narrow(static_cast<std::int64_t>(dim), box.start[dim], box.sizes[dim]);
    }
    expect_close(ours[i].first, grad, whole, tolerance, scale);
  }
}

}  // namespace d9d::test
