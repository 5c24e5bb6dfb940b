#include "d9d/optim/moments.h"

#include <set>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d::detail {

std::vector<Moments> make_moments(const std::vector<NamedParameter>& parameters, const MomentsOptions& options) {
  std::set<std::string> names;
  std::vector<Moments> result;
  for (const NamedParameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    D9D_CHECK(tensor.defined() && tensor.is_floating_point() && tensor.is_leaf() && !tensor.is_meta(), ConfigError,
              "[optim::", options.optimizer, "] expected parameter '", parameter.name,
              "' to be a floating leaf with storage, got another tensor. Build the optimizer after the parameters.");
    D9D_CHECK(names.insert(parameter.name).second, ConfigError, "[optim::", options.optimizer,
              "] expected distinct names, got '", parameter.name, "' twice. Name a shared parameter once.");
    const at::TensorOptions zeros = tensor.options().dtype(options.dtype(parameter)).requires_grad(false);
    result.push_back({.parameter = parameter,
                      .step = at::zeros({}, at::kLong),
                      .exp_avg = at::zeros(tensor.sizes(), zeros),
                      .exp_avg_sq = at::zeros(tensor.sizes(), zeros),
                      .max_exp_avg_sq = options.amsgrad ? at::zeros(tensor.sizes(), zeros) : at::Tensor()});
  }
  return result;
}

kernels::AdamWTensors begin_step(const Moments& moments, std::string_view optimizer) {
  const at::Tensor& parameter = moments.parameter.tensor;
  D9D_CHECK(parameter.grad().layout() == at::kStrided, ConfigError, "[optim::", optimizer,
            "] expected a dense gradient of '", moments.parameter.name, "', got layout ", parameter.grad().layout(),
            ". Sparse gradients are not built.");
  return {.parameter = parameter,
          .grad = parameter.grad(),
          .exp_avg = moments.exp_avg,
          .exp_avg_sq = moments.exp_avg_sq,
          .max_exp_avg_sq = moments.max_exp_avg_sq,
          .step = ++*moments.step.mutable_data_ptr<std::int64_t>()};
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

void check_adam_numbers(double lr, const std::pair<double, double>& betas, double eps, double weight_decay,
                        std::string_view optimizer) {
  const auto is_beta = [](double beta) { return beta >= 0 && beta < 1; };
  D9D_CHECK(lr >= 0 && eps >= 0 && weight_decay >= 0, ConfigError, "[optim::", optimizer,
            "] expected lr, eps and weight_decay >= 0, got lr = ", lr, ", eps = ", eps,
            ", weight_decay = ", weight_decay, ". Use positive numbers.");
  D9D_CHECK(is_beta(betas.first) && is_beta(betas.second), ConfigError, "[optim::", optimizer,
            "] expected betas in [0, 1), got ", betas.first, " and ", betas.second,
            ". The usual ones are 0.9 and 0.999.");
}

void check_learning_rate(double learning_rate, std::string_view optimizer) {
  D9D_CHECK(learning_rate >= 0, ConfigError, "[optim::", optimizer, "] expected a learning rate >= 0, got ",
            learning_rate, ". Check the scheduler.");
}

}  // namespace d9d::detail
