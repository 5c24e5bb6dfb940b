// y = x W^T (+ b).
#pragma once

#include "d9d/modules/base/module.h"

namespace d9d {

struct LinearConfig {
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  bool has_bias = false;
};

// State: weight [out, in], bias [out] if asked for. Both start from U(-1/sqrt(in), 1/sqrt(in)), as in PyTorch.
class Linear : public Module {
 public:
  explicit Linear(const LinearConfig& config);
  // x [..., in] -> [..., out].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

  const LinearConfig config;
  const ParameterPtr weight;
  const ParameterPtr bias;  // null without bias
};

}  // namespace d9d
