#include "d9d/internals/grad_norm/distributed_grad_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

// For order 2 at::pow is avoided: loading the library of its kernels takes some hundredths of a second on a GPU.
at::Tensor power(const at::Tensor& norm, double order) { return order == 2 ? norm * norm : norm.pow(order); }
at::Tensor root(const at::Tensor& sum, double order) { return order == 2 ? sum.sqrt() : sum.pow(1 / order); }

// The maximum over ranks, NaN if one rank has it. The maximum of some backends ignores NaN, so NaN is sent as a flag:
// [2] magnitude, and 1 if it is NaN.
at::Tensor with_nan_apart(const at::Tensor& norm) {
  const at::Tensor is_nan = norm.isnan();
  return at::stack({norm.masked_fill(is_nan, 0), is_nan.to(norm.scalar_type())});
}
at::Tensor with_nan_inside(const at::Tensor& parts) {
  return parts[0].masked_fill(parts[1] > 0, std::numeric_limits<double>::quiet_NaN());
}

// A rank's contribution to the norm, in the form in which ranks sum contributions.
class Part {
 public:
  Part(const at::Tensor& norm, double order)
      : is_max_(std::isinf(order)), values_(is_max_ ? with_nan_apart(norm) : power(norm, order)) {}

  [[nodiscard]] Work reduce(const DeviceMesh& ranks) {
    return ranks.communicator()->all_reduce(values_, is_max_ ? ReduceOp::kMax : ReduceOp::kSum);
  }
  void join(const Part& other) { values_ = is_max_ ? at::maximum(values_, other.values_) : values_ + other.values_; }
  [[nodiscard]] at::Tensor norm(double order) const {
    return is_max_ ? with_nan_inside(values_) : root(values_, order);
  }

 private:
  bool is_max_;
  at::Tensor values_;
};

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
  std::vector<Part> parts;
  std::vector<Work> reductions;
  for (const GradNormGroup& group : groups) {
    std::vector<at::Tensor> grads;
    for (const ParameterPtr& parameter : group.parameters) {
      if (parameter->stored().grad().defined()) grads.push_back(parameter->stored().grad());
    }
    const at::Device device = group.parameters.front()->stored().device();
    parts.emplace_back(global_grad_norm(grads, order).to(device), order);
    if (group.shards.num_ranks() > 1) reductions.push_back(parts.back().reduce(group.shards));
  }
  for (Work& reduction : reductions) reduction.wait();
  if (parts.empty()) {  // a stage with nothing that is trained
    const at::Device device = stages.num_ranks() > 1 ? stages.communicator()->device() : at::kCPU;
    parts.emplace_back(at::zeros({}, at::TensorOptions(device).dtype(at::kDouble)), order);
  }
  Part& total = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) total.join(parts[i]);
  if (stages.num_ranks() > 1) total.reduce(stages).wait();
  return total.norm(order);
}

}  // namespace d9d
