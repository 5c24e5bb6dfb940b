#include "d9d/optim/moments.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"
#include "d9d/kernels/adamw/adamw.h"
#include "d9d/optim/leaves.h"

namespace d9d::detail {
namespace {

// Increments the step count and returns the tensors that the step updates.
kernels::AdamWTensors begin_step(const Moments& moments, const AdamStep& shared) {
  const NamedParameter& parameter = moments.parameter;
  kernels::AdamWTensors tensors{.parameter = parameter.tensor,
                                .grad = parameter.tensor.grad(),
                                .exp_avg = moments.exp_avg,
                                .exp_avg_sq = moments.exp_avg_sq,
                                .max_exp_avg_sq = moments.max_exp_avg_sq,
                                .step = ++*moments.step.mutable_data_ptr<std::int64_t>()};
  if (shared.rounding_seed && parameter.tensor.scalar_type() == at::kBFloat16) {
    tensors.rounding = kernels::StochasticRounding{
        .key = philox_key(*shared.rounding_seed, "stochastic_rounding", parameter.name), .rows = parameter.rows};
  }
  return tensors;
}

}  // namespace

std::vector<Moments> make_moments(const std::vector<NamedParameter>& parameters, const ParameterGroups& groups,
                                  const MomentsOptions& options) {
  check_leaves(parameters, options.optimizer);
  std::vector<Moments> result;
  for (const NamedParameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    const at::TensorOptions zeros = tensor.options().dtype(options.dtype(parameter)).requires_grad(false);
    result.push_back({.parameter = parameter,
                      .options = groups.options_of(parameter),
                      .step = at::zeros({}, at::kLong),
                      .exp_avg = at::zeros(tensor.sizes(), zeros),
                      .exp_avg_sq = at::zeros(tensor.sizes(), zeros),
                      .max_exp_avg_sq = options.amsgrad ? at::zeros(tensor.sizes(), zeros) : at::Tensor()});
  }
  return result;
}

void step(const std::vector<Moments>& moments, const AdamStep& shared, const at::Tensor& grad_scale) {
  check_learning_rate(shared.learning_rate, shared.optimizer);
  std::map<ParameterOptions, std::vector<kernels::AdamWTensors>> batches;
  for (const Moments& each : moments) {
    if (!each.parameter.tensor.grad().defined()) continue;
    check_dense_gradient(each.parameter, shared.optimizer);
    batches[each.options].push_back(begin_step(each, shared));
  }
  for (const auto& [options, tensors] : batches) {
    kernels::adamw_(tensors,
                    {.learning_rate = shared.learning_rate * options.lr_factor,
                     .beta1 = options.betas.first,
                     .beta2 = options.betas.second,
                     .eps = shared.eps,
                     .weight_decay = options.weight_decay,
                     .decouples_decay = shared.decouples_decay,
                     .maximize = shared.maximize},
                    grad_scale);
  }
}

void forget_step(const std::vector<Moments>& moments) {
  for (const Moments& each : moments)
    if (each.parameter.tensor.grad().defined()) --*each.step.mutable_data_ptr<std::int64_t>();
}

std::map<std::string, DTensor> state_of(const std::vector<Moments>& moments) {
  std::map<std::string, DTensor> result;
  for (const Moments& each : moments) {
    const NamedParameter& parameter = each.parameter;
    result.emplace(parameter.name + ".step", whole_dtensor(each.step));
    result.emplace(parameter.name + ".exp_avg", parameter.laid_out(each.exp_avg));
    result.emplace(parameter.name + ".exp_avg_sq", parameter.laid_out(each.exp_avg_sq));
    if (each.max_exp_avg_sq.defined()) {
      result.emplace(parameter.name + ".max_exp_avg_sq", parameter.laid_out(each.max_exp_avg_sq));
    }
  }
  return result;
}

}  // namespace d9d::detail
