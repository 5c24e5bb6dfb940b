#include "d9d/internals/grad_norm/part_norms.h"

#include <algorithm>
#include <cctype>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "d9d/core/collectives/gather.h"
#include "d9d/internals/grad_norm/distributed_grad_norm.h"
#include "d9d/internals/grad_norm/grad_norm.h"

namespace d9d {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char each) { return std::isdigit(each) != 0; });
}

at::Device device_of(const std::vector<std::pair<std::string, ParameterPtr>>& parameters, const DeviceMesh& stages) {
  if (!parameters.empty()) return parameters.front().second->stored().device();
  return stages.num_ranks() > 1 ? stages.communicator()->device() : at::Device(at::kCPU);
}

// Collective over the ranks. They add up each other's vectors in one order, so that replicas get the same bits.
at::Tensor sum_over(const DeviceMesh& ranks, const at::Tensor& own) {
  if (ranks.num_ranks() == 1) return own;
  return at::stack(all_gather(own, *ranks.communicator())).sum(0);
}

at::Tensor gradient_of(const Parameter& parameter) { return parameter.stored().grad(); }
at::Tensor value_of(const Parameter& parameter) {
  const at::Tensor& stored = parameter.stored();
  return stored.is_floating_point() ? stored : at::Tensor();
}

}  // namespace

PartOfParameter by_prefix(std::size_t num_parts) {
  return [num_parts](const std::string& parameter) {
    std::size_t end = 0;
    for (std::size_t i = 0; i < num_parts && end != std::string::npos; ++i) {
      end = parameter.find('.', i == 0 ? 0 : end + 1);
    }
    return parameter.substr(0, end);
  };
}

std::string layer_of(const std::string& parameter) {
  const std::size_t last_dot = parameter.rfind('.');
  if (last_dot == std::string::npos) return parameter;
  const std::string module = parameter.substr(0, last_dot);
  for (std::size_t begin = 0; begin < module.size();) {
    const std::size_t end = std::min(module.find('.', begin), module.size());
    if (is_number(module.substr(begin, end - begin))) return module.substr(0, end);
    begin = end + 1;
  }
  return by_prefix(2)(module);
}

PartNorms::PartNorms(const std::vector<std::pair<std::string, ParameterPtr>>& parameters, const PartOfParameter& part,
                     DeviceMesh stages)
    : stages_(std::move(stages)), device_(device_of(parameters, stages_)) {
  nlohmann::json own = nlohmann::json::object();  // whether each parameter is trained
  for (const auto& [name, parameter] : parameters) own[name] = parameter->requires_grad();
  std::map<std::string, bool> is_trained;  // by part
  std::set<std::string> counted;           // the parameters of earlier stages, then those of this rank's groups
  const std::vector<nlohmann::json> all = all_gather_object(own, stages_);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const auto& [name, trains] : all[rank].items()) {
      if (const std::string key = part(name); !key.empty()) is_trained[key] |= trains.get<bool>();
      if (static_cast<std::int64_t>(rank) < stages_.index()) counted.insert(name);
    }
  }
  std::map<std::string, std::size_t> indices;
  for (const auto& [name, trains] : is_trained) {
    indices[name] = parts_.size();
    parts_.push_back({.name = name, .is_trained = trains});
  }
  std::vector<ParameterPtr> kept;
  std::map<const Parameter*, std::size_t> index_of;
  for (const auto& [name, parameter] : parameters) {
    const auto index = indices.find(part(name));
    if (index == indices.end() || !counted.insert(name).second) continue;
    kept.push_back(parameter);
    index_of[parameter.get()] = index->second;
  }
  for (const GradNormGroup& group : group_by_shards(kept)) {
    Group& added = groups_.emplace_back(Group{.shards = group.shards, .parts = {}});
    added.parts.resize(parts_.size());
    for (const ParameterPtr& parameter : group.parameters) {
      added.parts[index_of.at(parameter.get())].push_back(parameter);
    }
  }
}

at::Tensor PartNorms::of_gradients() const { return norms_of(gradient_of); }
at::Tensor PartNorms::of_parameters() const { return norms_of(value_of); }

// Returns the sum of squares of each part of this rank's shards.
at::Tensor PartNorms::squares_of(const Group& group, TensorOf tensor_of) const {
  const at::Tensor zero = at::zeros({}, at::TensorOptions(device_).dtype(at::kDouble));
  std::vector<at::Tensor> squares;
  for (const std::vector<ParameterPtr>& parameters : group.parts) {
    std::vector<at::Tensor> tensors;
    for (const ParameterPtr& parameter : parameters) {
      if (const at::Tensor tensor = tensor_of(*parameter); tensor.defined()) tensors.push_back(tensor);
    }
    const at::Tensor norm = tensors.empty() ? zero : global_grad_norm(tensors, 2.0);
    squares.push_back(norm * norm);
  }
  return at::stack(squares);
}

at::Tensor PartNorms::norms_of(TensorOf tensor_of) const {
  const at::NoGradGuard no_grad;
  at::Tensor total = at::zeros({std::ssize(parts_)}, at::TensorOptions(device_).dtype(at::kDouble));
  if (parts_.empty()) return total;
  for (const Group& group : groups_) total = total + sum_over(group.shards, squares_of(group, tensor_of));
  return sum_over(stages_, total).sqrt();
}

std::map<std::string, double> gradient_norms(const std::vector<std::reference_wrapper<Module>>& modules,
                                             const PartOfParameter& part, const DeviceMesh& stages) {
  std::vector<std::pair<std::string, ParameterPtr>> parameters;
  for (Module& module : modules) {
    for (const auto& named : module.named_parameters()) parameters.push_back(named);
  }
  const PartNorms norms(parameters, part, stages);
  const at::Tensor values = norms.of_gradients().cpu();
  std::map<std::string, double> result;
  for (std::size_t i = 0; i < norms.parts().size(); ++i) {
    const auto& [name, is_trained] = norms.parts()[i];
    if (is_trained) result[name] = values.const_data_ptr<double>()[i];
  }
  return result;
}

}  // namespace d9d
