#include "d9d/internals/grad_norm/distributed_grad_norm.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

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

// For order 2 at::pow is avoided: loading the library of its kernels takes some hundredths of a second on a GPU.
at::Tensor power(const at::Tensor& norm, double order) { return order == 2 ? norm * norm : norm.pow(order); }
at::Tensor root(const at::Tensor& sum, double order) { return order == 2 ? sum.sqrt() : sum.pow(1 / order); }

// contribution() returns the value that a rank or group contributes to a norm, joined() combines these values. A
// maximum is NaN if any value is NaN.
at::Tensor contribution(const at::Tensor& norm, double order) { return std::isinf(order) ? norm : power(norm, order); }
at::Tensor joined(const at::Tensor& all, double order) { return std::isinf(order) ? all.amax() : all.sum(); }

// Gathers the contributions of all ranks in rank order, so that each rank adds them up by itself. In an all-reduce each
// replica has a group of its own, in which a backend may add in a different order: the replicas' norms, and after
// clipping their parameters, would then differ in the last bit. The maximum of some backends also ignores NaN.
struct Gathered {
  Gathered(const at::Tensor& contribution, const DeviceMesh& ranks)
      : own(contribution.view(1)),
        all(at::empty({ranks.num_ranks()}, own.options())),
        work(ranks.communicator()->all_gather(all, own)) {}
  at::Tensor own;
  at::Tensor all;
  Work work;
};

}  // namespace

std::vector<GradNormGroup> group_by_shards(const std::vector<ParameterPtr>& parameters) {
  std::vector<GradNormGroup> groups;
  for (const ParameterPtr& parameter : parameters) {
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

std::vector<GradNormGroup> group_parameters_for_norm(const std::vector<ParameterPtr>& parameters) {
  std::vector<ParameterPtr> trained;
  std::ranges::copy_if(parameters, std::back_inserter(trained), &Parameter::requires_grad);
  return group_by_shards(trained);
}

at::Tensor distributed_grad_norm(const std::vector<GradNormGroup>& groups, double order, const DeviceMesh& stages) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  std::vector<Gathered> gathered;
  for (const GradNormGroup& group : groups) {
    std::vector<at::Tensor> grads;
    for (const ParameterPtr& parameter : group.parameters) {
      if (parameter->stored().grad().defined()) grads.push_back(parameter->stored().grad());
    }
    const at::Device device = group.parameters.front()->stored().device();
    const at::Tensor own = contribution(global_grad_norm(grads, order).to(device), order);
    group.shards.num_ranks() > 1 ? (void)gathered.emplace_back(own, group.shards) : parts.push_back(own);
  }
  for (Gathered& each : gathered) {
    each.work.wait();
    parts.push_back(joined(each.all, order));
  }
  if (parts.empty()) {  // a stage without trained parameters
    const at::Device device = stages.num_ranks() > 1 ? stages.communicator()->device() : at::kCPU;
    parts.push_back(at::zeros({}, at::TensorOptions(device).dtype(at::kDouble)));
  }
  at::Tensor total = joined(at::stack(parts), order);
  if (stages.num_ranks() > 1) {
    Gathered of_stages(total, stages);
    of_stages.work.wait();
    total = joined(of_stages.all, order);
  }
  return std::isinf(order) ? total : root(total, order);
}

}  // namespace d9d
