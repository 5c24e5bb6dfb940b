// Root-mean-square normalisation of the last dim with a learned scale.
#pragma once

#include <optional>

#include "d9d/modules/module.h"

namespace d9d {

struct RMSNormConfig {
  std::int64_t hidden_size = 0;
  double eps = 1e-6;
  bool zero_centered = false;  // the factor is 1 + weight, and weight starts at zero
};

// A residual sum and its norm.
struct NormedSum {
  at::Tensor sum;   // [..., hidden_size]
  at::Tensor norm;  // [..., hidden_size]
  static constexpr auto fields() {
    return record<NormedSum>(field("sum", &NormedSum::sum), field("norm", &NormedSum::norm));
  }
};

// State: weight [hidden_size].
class RMSNorm : public Module {
 public:
  explicit RMSNorm(const RMSNormConfig& config);
  // x [..., hidden_size] -> the same shape and dtype.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;
  // x, residual [..., hidden_size] -> x + residual and its norm. Without a residual returns x and its norm: use this
  // where a residual branch begins, so that the norm's backward also sums the branch's gradients
  // (kernels/rms_norm/rms_norm.h).
  [[nodiscard]] NormedSum forward(const at::Tensor& x, const std::optional<at::Tensor>& residual) const;

  [[nodiscard]] std::optional<TensorPlan> tensor_plan(std::int64_t num_ranks) const override;

  const RMSNormConfig config;
  const ParameterPtr weight;
};

}  // namespace d9d
