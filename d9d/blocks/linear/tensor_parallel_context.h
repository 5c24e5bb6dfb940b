// How a block's linears work together over tensor-parallel ranks. The local form has everything; tensor parallelism
// puts another in its place. Between blocks each rank has a shard of the sequence, within a block its columns of the
// whole sequence (Korthikanti et al., arXiv:2205.05198).
//
// Example
//   const std::vector<at::Tensor> columns = context->column_linears(x, {gate_proj, up_proj});
//   return context->row_linear(kernels::silu_mul(columns[0], columns[1]), down_proj);
//
// Legend   B batch, S positions, H hidden size, W ranks (1 in the local form)
#pragma once

#include <memory>
#include <vector>

#include "d9d/blocks/linear/linear.h"

namespace d9d {

class TensorParallelContext {
 public:
  virtual ~TensorParallelContext() = default;

  // Collective: shards of the sequence -> the whole, [B, S / W, H] -> [B, S, H]. Backward sums the ranks' gradients.
  [[nodiscard]] virtual at::Tensor enter(const at::Tensor& x) const = 0;
  // Collective: summands of the whole sequence -> shards of their sum, [B, S, H] -> [B, S / W, H].
  [[nodiscard]] virtual at::Tensor leave(const at::Tensor& summand) const = 0;

  // Collective: each linear of enter(x), in order; a linear has its columns here, [B, S, out / W].
  [[nodiscard]] virtual std::vector<at::Tensor> column_linears(const at::Tensor& x,
                                                               const std::vector<ModulePtr<Linear>>& linears) const;
  // Collective: leave() of a linear that has the rows of this rank's columns, [B, S, in / W] -> [B, S / W, out].
  [[nodiscard]] virtual at::Tensor row_linear(const at::Tensor& y, const ModulePtr<Linear>& linear) const;
};
using TensorParallelContextPtr = std::shared_ptr<const TensorParallelContext>;  // shared by the blocks of a model

// All columns are here; x of any shape [..., H].
class LocalTensorParallelContext final : public TensorParallelContext {
 public:
  [[nodiscard]] at::Tensor enter(const at::Tensor& x) const override { return x; }
  [[nodiscard]] at::Tensor leave(const at::Tensor& summand) const override { return summand; }
};

}  // namespace d9d
