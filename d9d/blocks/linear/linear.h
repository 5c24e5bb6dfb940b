// y = x W^T (+ b).
#pragma once

#include <vector>

#include "d9d/modules/module.h"

namespace d9d {

struct LinearConfig {
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  bool has_bias = false;
  ParameterRole role = ParameterRole::kLinear;  // of the weight
};

// State: weight [out, in], and bias [out] if has_bias. Both are initially from U(-1/sqrt(in), 1/sqrt(in)), as in
// PyTorch.
class Linear : public Module {
 public:
  explicit Linear(const LinearConfig& config);
  // x [..., in] -> [..., out].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;
  [[nodiscard]] double forward_flops(std::int64_t num_positions) const override;
  // Whether it has neither a bias nor hooks of its own, so that a kernel may use its weight directly.
  [[nodiscard]] bool is_product() const { return !bias && is_plain(); }

  const LinearConfig config;
  const ParameterPtr weight;
  const ParameterPtr bias;  // null without bias
};

// Applies each linear to x, in order. If none has hooks of its own, and all have a bias or none has, this is one
// operator, which joins products where it can (kernels/linear/linear.h).
[[nodiscard]] std::vector<at::Tensor> linears_of(const at::Tensor& x, const std::vector<ModulePtr<Linear>>& linears);

// For after_materialize of a block that uses linears_of: places the weights contiguously one after another in memory,
// with undefined values. The memory of weights of flat groups is left to their group.
void join_weights(const std::vector<ModulePtr<Linear>>& linears);

}  // namespace d9d
