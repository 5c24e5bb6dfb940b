#include "d9d/internals/grad_norm/distributed_grad_norm.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

namespace d9d {
namespace {

DeviceMesh sharded_axes(const Parameter& parameter) {
  std::vector<std::string> axes;
  for (std::size_t i = 0; i < parameter.placements().size(); ++i) {
    const Placement& placement = parameter.placements()[i];
    const bool is_cut = std::holds_alternative<Shard>(placement) || std::holds_alternative<FlatShard>(placement);
    if (is_cut && parameter.mesh().axes()[i].size > 1) axes.push_back(parameter.mesh().axes()[i].name);
  }
  return parameter.mesh().slice(axes);
}

// The usual order without at::pow: the library of its kernels takes a GPU some hundredths of a second to load.
at::Tensor power(const at::Tensor& norm, double order) { return order == 2 ? norm * norm : norm.pow(order); }
at::Tensor root(const at::Tensor& sum, double order) { return order == 2 ? sum.sqrt() : sum.pow(1 / order); }

}  // namespace

std::vector<GradNormGroup> group_parameters_for_norm(const std::vector<ParameterPtr>& parameters) {
  std::vector<GradNormGroup> groups;
  for (const ParameterPtr& parameter : parameters) {
    if (!parameter->requires_grad()) continue;
    const DeviceMesh shards = sharded_axes(*parameter);
    const auto group = std::ranges::find_if(groups, [&](const GradNormGroup& each) {
      return each.shards.num_ranks() == 1 ? shards.num_ranks() == 1 : each.shards == shards;
    });
    if (group == groups.end()) {
      groups.push_back({.shards = shards, .parameters = {parameter}});
    } else {
      group->parameters.push_back(parameter);
    }
  }
  std::ranges::stable_partition(groups, [](const GradNormGroup& group) { return group.shards.num_ranks() > 1; });
  return groups;
}

at::Tensor distributed_grad_norm(const std::vector<GradNormGroup>& groups, double order, const DeviceMesh& stages) {
  const at::NoGradGuard no_grad;
  const bool is_max = std::isinf(order);
  const ReduceOp op = is_max ? ReduceOp::kMax : ReduceOp::kSum;
  std::vector<at::Tensor> parts;
  std::vector<Work> reductions;
  for (const GradNormGroup& group : groups) {
    std::vector<at::Tensor> grads;
    for (const ParameterPtr& parameter : group.parameters) {
      if (parameter->stored().grad().defined()) grads.push_back(parameter->stored().grad());
    }
    const at::Device device = group.parameters.front()->stored().device();
    const at::Tensor norm = global_grad_norm(grads, order).to(device);
    parts.push_back(is_max ? norm : power(norm, order));
    if (group.shards.num_ranks() > 1) {
      reductions.push_back(group.shards.communicator()->all_reduce(parts.back(), op));
    }
  }
  for (Work& reduction : reductions) reduction.wait();
  at::Tensor total = parts.empty() ? at::zeros({}, at::kDouble) : parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) total = is_max ? at::maximum(total, parts[i]) : total + parts[i];
  if (stages.num_ranks() > 1) stages.communicator()->all_reduce(total, op).wait();
  return is_max ? total : root(total, order);
}

}  // namespace d9d
