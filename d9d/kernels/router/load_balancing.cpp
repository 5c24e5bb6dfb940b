#include "d9d/kernels/router/load_balancing.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>

#include "d9d/base/check.h"

namespace d9d::kernels {

at::Tensor expert_probability_sums(const at::Tensor& logits) {
  D9D_CHECK(logits.dim() == 2, ConfigError,
            "[kernels::expert_probability_sums] expected logits [tokens, experts], got ", logits.sizes(), ".");
  return at::softmax(logits, 1, at::toOpMathType(logits.scalar_type())).sum(0);
}

at::Tensor load_balancing_loss(const LoadBalancingRequest& request) {
  const auto& sums = request.probability_sums;
  D9D_CHECK(sums.dim() == 1 && sums.sizes() == request.counts.sizes(), ConfigError,
            "[kernels::load_balancing_loss] expected probability sums and counts of one shape [experts], got ",
            sums.sizes(), " and ", request.counts.sizes(), ". Count over all experts.");
  const auto counts = request.counts.detach().to(sums.scalar_type());
  const auto num_tokens = counts.sum().clamp_min(1) / static_cast<double>(request.top_k);
  return (counts / num_tokens.square() * sums).sum() * sums.size(0);
}

void update_expert_bias_(at::Tensor& bias, const at::Tensor& counts, double rate) {
  D9D_CHECK(bias.dim() == 1 && bias.sizes() == counts.sizes(), ConfigError,
            "[kernels::update_expert_bias_] expected bias and counts of one shape [experts], got ", bias.sizes(),
            " and ", counts.sizes(), ". Count over all experts.");
  const c10::NoGradGuard no_grad;
  const auto counts_as_double = counts.to(at::kDouble);
  bias.add_((counts_as_double.mean() - counts_as_double).sign(), rate);
}

}  // namespace d9d::kernels
