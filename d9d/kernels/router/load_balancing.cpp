#include "d9d/kernels/router/load_balancing.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/GradMode.h>

#include "d9d/base/check.h"

namespace d9d::kernels {

at::Tensor load_balancing_loss(const LoadBalancingRequest& request) {
  const auto& logits = request.logits;
  D9D_CHECK(logits.dim() == 2 && request.counts.sizes() == at::IntArrayRef{logits.size(1)}, ConfigError,
            "[kernels::load_balancing_loss] expected logits [tokens, experts] and counts [experts], got ",
            logits.sizes(), " and ", request.counts.sizes(), ". Count over all experts.");
  const auto dtype = at::toOpMathType(logits.scalar_type());
  const auto counts = request.counts.detach().to(dtype);
  const auto shares = counts * static_cast<double>(request.top_k) / counts.sum().clamp_min(1);
  const auto mean_probs = at::softmax(logits, 1, dtype).mean(0);
  return (shares * mean_probs).sum() * logits.size(1);
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
