#include "d9d/loop/component/weighted_loss.h"

#include <string_view>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr std::string_view kWho = "[loop::task] expected TrainTask::compute_loss to return ";

void check_loss(const at::Tensor& loss) {
  D9D_CHECK(loss.defined(), StateError, kWho, "a loss, got an undefined tensor. Set LossResult::loss.");
  D9D_CHECK(loss.dim() == 0, StateError, kWho, "a loss without dims, got shape ", loss.sizes(),
            ". Reduce it: to a mean, with what it is a mean over as the weight.");
  D9D_CHECK(at::isFloatingType(loss.scalar_type()), StateError, kWho, "a floating loss, got ",
            at::toString(loss.scalar_type()), ".");
  D9D_CHECK(loss.requires_grad(), StateError, kWho,
            "a loss with a graph, got one that no trained parameter leads to. Compute it from the model's output "
            "without detach(), item() or NoGradGuard, and leave a parameter trainable.");
}

void check_weight(const at::Tensor& weight) {
  D9D_CHECK(weight.defined(), StateError, kWho,
            "a weight or none, got an undefined tensor. Leave LossResult::loss_weight empty for 1.");
  D9D_CHECK(weight.dim() == 0, StateError, kWho, "a weight without dims, got shape ", weight.sizes(),
            ". Reduce it: to a sum.");
  D9D_CHECK(!at::isComplexType(weight.scalar_type()), StateError, kWho, "a real weight, got ",
            at::toString(weight.scalar_type()), ".");
}

}  // namespace

WeightedLoss weighted_loss(const LossResult& result) {
  check_loss(result.loss);
  if (result.loss_weight) check_weight(*result.loss_weight);
  const at::ScalarType dtype = result.loss.scalar_type();
  const at::ScalarType wide = at::promote_types(dtype, at::kFloat);
  const at::Tensor weight = result.loss_weight ? *result.loss_weight : result.loss.detach().new_ones({});
  return {.loss = result.loss.to(wide), .weight = wide == dtype ? weight : weight.to(dtype).to(wide)};
}

}  // namespace d9d
