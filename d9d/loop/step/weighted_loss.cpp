#include "d9d/loop/step/weighted_loss.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr std::string_view kReturns = "[loop::task] expected TrainTask::compute_loss to return ";

// name: "a loss", or the name of one of several.
void check_loss(const at::Tensor& loss, const std::string& name = "a loss") {
  D9D_CHECK(loss.defined(), StateError, kReturns, name, ", got an undefined tensor. Set it in LossResult.");
  D9D_CHECK(loss.dim() == 0, StateError, kReturns, name, " without dims, got shape ", loss.sizes(),
            ". Reduce it: to a mean, with what it is a mean over as the weight.");
  D9D_CHECK(at::isFloatingType(loss.scalar_type()), StateError, kReturns, name, " of a floating dtype, got ",
            at::toString(loss.scalar_type()), ".");
  D9D_CHECK(loss.requires_grad() || !at::GradMode::is_enabled(), StateError, kReturns, name,
            " with a graph, got one that depends on no trained parameter. Compute it from the model's output "
            "without detach(), item() or NoGradGuard, and leave a parameter trainable.");
}

void check_weight(const at::Tensor& weight) {
  D9D_CHECK(weight.defined(), StateError, kReturns,
            "a weight or none, got an undefined tensor. Leave LossResult::loss_weight empty for 1.");
  D9D_CHECK(weight.dim() == 0, StateError, kReturns, "a weight without dims, got shape ", weight.sizes(),
            ". Reduce it: to a sum.");
  D9D_CHECK(!at::isComplexType(weight.scalar_type()), StateError, kReturns, "a real weight, got ",
            at::toString(weight.scalar_type()), ".");
}

std::string names_of(const std::map<std::string, at::Tensor>& entries) {
  std::string names;
  for (const auto& [name, tensor] : entries) names += (names.empty() ? "" : ", ") + name;
  return cat("{", names, "}");
}

WeightedLoss sum_of_losses(const LossResult& result, const LossScales& scales) {
  const auto name_of = [](const auto& entry) { return entry.first; };
  D9D_CHECK(std::ranges::equal(result.losses, scales.of, {}, name_of, name_of), StateError, kReturns,
            "the losses that ForwardInputs::loss_weights names, ", names_of(scales.of), ", got ",
            names_of(result.losses),
            ". Return each of them in LossResult::losses, as 0 times something if it is absent.");
  WeightedLoss sum{.loss = {}, .weight = scales.weight, .losses = {}};
  for (const auto& [name, loss] : result.losses) {
    check_loss(loss, cat("the loss '", name, "'"));
    const at::Tensor wide = loss.to(at::promote_types(loss.scalar_type(), at::kFloat));
    const at::Tensor part = wide * scales.of.at(name).to(wide.scalar_type());
    sum.loss = sum.loss.defined() ? sum.loss + part : part;
    sum.losses.emplace(name, wide.detach());
  }
  return sum;
}

}  // namespace

WeightedLoss weighted_loss(const LossResult& result, const LossScales& scales) {
  if (!scales.of.empty()) {
    D9D_CHECK(!result.loss.defined() && !result.loss_weight, StateError, kReturns,
              "LossResult::losses alone, since ForwardInputs::loss_weights names ", names_of(scales.of),
              ", got a loss or a weight besides.");
    return sum_of_losses(result, scales);
  }
  D9D_CHECK(result.losses.empty(), StateError, kReturns, "one loss, got ", names_of(result.losses),
            ". Tell what each of several is a mean over, in ForwardInputs::loss_weights of build_forward_inputs.");
  check_loss(result.loss);
  if (result.loss_weight) check_weight(*result.loss_weight);
  const at::ScalarType dtype = result.loss.scalar_type();
  const at::ScalarType wide = at::promote_types(dtype, at::kFloat);
  at::Tensor weight = result.loss.detach().new_ones({});
  if (result.loss_weight) weight = *result.loss_weight;
  if (weight.is_cpu() && !result.loss.is_cpu()) {
    weight = at::full({}, weight.item<double>(), result.loss.options().dtype(at::kDouble).requires_grad(false));
  }
  return {.loss = result.loss.to(wide), .weight = wide == dtype ? weight : weight.to(dtype).to(wide)};
}

}  // namespace d9d
