#include "d9d/loop/component/gradient_manager.h"

#include <cmath>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/internals/grad_norm/grad_norm.h"
#include "d9d/internals/grad_sync/gradient_synchronizer.h"

namespace d9d {

GradientManager::GradientManager(const DistContext& context, Module& module, const GradientManagerConfig& config,
                                 const GradientClippingConfig& clipping)
    : parameters_(module.named_parameters()),
      reductions_(gradient_reductions(module)),
      stages_(context.mesh(MeshDomain::kRegular).slice({"pp"})),
      ranks_(context.mesh(MeshDomain::kBatch)),
      counts_(ranks_.axis_coordinate("tp") == 0),
      device_(context.device()),
      clipping_(clipping) {
  GradientSynchronizerConfig synchronizer{.bucket_size_bytes = config.bucket_size_mb << 20};
  if (config.grad_dtype) synchronizer.gradient_dtype = to_scalar_type(*config.grad_dtype);
  reductions_.push_back(std::make_shared<GradientSynchronizer>(parameters_, synchronizer));
  std::vector<ParameterPtr> parameters;
  for (const auto& [name, parameter] : parameters_) parameters.push_back(parameter);
  norm_groups_ = group_parameters_for_norm(parameters);
}

void GradientManager::begin_microbatch(bool is_last) {
  for (const auto& reduction : reductions_) reduction->begin_microbatch(is_last);
}

void GradientManager::end_microbatch() {
  for (const auto& reduction : reductions_) reduction->end_microbatch();
}

void GradientManager::add_loss_with_weight(const at::Tensor& loss, const at::Tensor& weight) {
  const at::Tensor wide_weight = weight.detach().to(at::kDouble);
  const at::Tensor weighted = loss.detach().to(at::kDouble) * wide_weight;
  weighted_loss_ = weighted_loss_.defined() ? weighted_loss_ + weighted : weighted;
  total_weight_ = total_weight_.defined() ? total_weight_ + wide_weight : wide_weight;
}

// [weighted loss, weight, tokens, wishes to stop], fp64, on the device: one reduction.
at::Tensor GradientManager::sum_over_ranks(const RankReport& report) const {
  D9D_CHECK(total_weight_.defined() || ranks_.axis_size("pp") > 1, StateError,
            "[loop::gradients] expected at least one microbatch with a loss in the step, got none.");
  const at::TensorOptions options = at::TensorOptions(device_).dtype(at::kDouble);
  const at::Tensor zero = at::zeros({}, options);
  const bool has_loss = counts_ && total_weight_.defined();
  at::Tensor totals =
      at::stack({has_loss ? weighted_loss_.to(device_) : zero, has_loss ? total_weight_.to(device_) : zero,
                 at::full({}, counts_ ? static_cast<double>(report.num_tokens) : 0.0, options),
                 at::full({}, report.wants_to_stop ? 1.0 : 0.0, options)});
  if (ranks_.num_ranks() > 1) ranks_.communicator()->all_reduce(totals, ReduceOp::kSum).wait();
  return totals;
}

StepGradients GradientManager::sum_step(const RankReport& report) {
  const at::NoGradGuard no_grad;
  for (const auto& reduction : reductions_) reduction->wait();
  const at::Tensor totals = sum_over_ranks(report);
  const at::Tensor sum_norm = distributed_grad_norm(norm_groups_, 2.0, stages_);
  const at::Tensor read = at::cat({totals, sum_norm.to(totals.options()).view(1)}).cpu();  // the one wait of a step
  const double* const total = read.const_data_ptr<double>();
  StepGradients step{
      .total_weight = total[1], .num_tokens = static_cast<std::int64_t>(total[2]), .stops = total[3] > 0};
  if (step.total_weight == 0.0) {
    step.is_usable = false;
    step.reason = "its total loss weight is 0";
    return step;
  }
  step.loss = total[0] / step.total_weight;
  step.norm = total[4] / std::abs(step.total_weight);
  if (!std::isfinite(step.loss) || !std::isfinite(step.norm)) {
    step.is_usable = false;
    step.reason = cat("loss ", step.loss, ", gradient norm ", step.norm, first_non_finite());
    D9D_CHECK(clipping_.on_non_finite == NonFinitePolicy::kSkip, StateError,
              "[loop::gradients] expected a finite loss and gradient norm, got ", step.reason,
              ". Lower the learning rate or set trainer.gradient_clipping.on_non_finite to \"skip\".");
    return step;
  }
  const at::Tensor norm = at::scalar_tensor(step.norm, at::kDouble);
  const double clip = clipping_.max_norm ? clip_coefficient(norm, *clipping_.max_norm).item<double>() : 1.0;
  step.grad_scale = clip / step.total_weight;
  return step;
}

void GradientManager::scale_gradients(StepGradients& step) const {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> grads = gradients();
  if (!grads.empty()) at::_foreach_mul_(grads, step.grad_scale);
  step.grad_scale = 1.0;
}

StepGradients GradientManager::finish_step(const RankReport& report) {
  StepGradients step = sum_step(report);
  if (step.is_usable) scale_gradients(step);
  return step;
}

void GradientManager::reset() {
  for (const auto& reduction : reductions_) reduction->clear();
  weighted_loss_ = at::Tensor();
  total_weight_ = at::Tensor();
}

void GradientManager::abandon() {
  for (const auto& reduction : reductions_) reduction->abandon();
  reset();
}

void GradientManager::close() {
  for (const auto& reduction : reductions_) reduction->close();
}

std::vector<at::Tensor> GradientManager::gradients() const {
  std::vector<at::Tensor> grads;
  for (const auto& [name, parameter] : parameters_) {
    if (parameter->stored().grad().defined()) grads.push_back(parameter->stored().grad());
  }
  return grads;
}

std::string GradientManager::first_non_finite() const {
  for (const auto& [name, parameter] : parameters_) {
    const at::Tensor& grad = parameter->stored().grad();
    if (grad.defined() && !grad.isfinite().all().item<bool>()) return cat(", first in the gradient of ", name);
  }
  return "";
}

}  // namespace d9d
