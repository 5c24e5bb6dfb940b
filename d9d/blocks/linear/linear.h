// y = x W^T (+ b).
#pragma once

#include <vector>

#include "d9d/modules/module.h"

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
  // Without bias and hooks of its own, so that a kernel that has its weight may multiply in its place.
  [[nodiscard]] bool is_product() const { return !bias && is_plain(); }

  const LinearConfig config;
  const ParameterPtr weight;
  const ParameterPtr bias;  // null without bias
};

// x through each linear, in order: together where none has a bias or hooks of its own (kernels/linear/linear.h).
[[nodiscard]] std::vector<at::Tensor> linears_of(const at::Tensor& x, const std::vector<ModulePtr<Linear>>& linears);

// For after_materialize of a block that uses linears_of: puts the weights one after another in memory, values
// undefined. Weights of flat groups lie there as the group wants.
void join_weights(const std::vector<ModulePtr<Linear>>& linears);

}  // namespace d9d
