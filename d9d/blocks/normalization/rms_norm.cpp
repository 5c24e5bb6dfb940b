#include "d9d/blocks/normalization/rms_norm.h"

#include "d9d/base/check.h"
#include "d9d/kernels/rms_norm/rms_norm.h"

namespace d9d {
namespace {

const RMSNormConfig& checked(const RMSNormConfig& config) {
  D9D_CHECK(config.hidden_size > 0 && config.eps > 0, ConfigError,
            "[blocks::rms_norm] expected positive hidden_size and eps, got ", config.hidden_size, " and ", config.eps,
            ".");
  return config;
}

}  // namespace

RMSNorm::RMSNorm(const RMSNormConfig& configuration)
    : config(checked(configuration)),
      weight(register_parameter("weight", {.shape = {config.hidden_size},
                                           .init = config.zero_centered ? init::zeros() : init::ones(),
                                           .role = ParameterRole::kNorm})) {}

std::optional<TensorPlan> RMSNorm::tensor_plan(std::int64_t /*num_ranks*/) const {
  return TensorPlan{
      .input = TensorPlan::Edge::kShard, .output = TensorPlan::Edge::kShard, .parameters = {{weight, Replicate{}}}};
}

at::Tensor RMSNorm::forward(const at::Tensor& x) const {
  return kernels::rms_norm(x, weight->local(), config.eps, config.zero_centered);
}

NormedSum RMSNorm::forward(const at::Tensor& x, const std::optional<at::Tensor>& residual) const {
  const auto [sum, norm] = kernels::add_rms_norm(x, residual, weight->local(), config.eps, config.zero_centered);
  return {.sum = sum, .norm = norm};
}

}  // namespace d9d
