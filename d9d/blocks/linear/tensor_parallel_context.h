// How a block's linears work together over tensor-parallel ranks. In the local form this rank holds everything; tensor
// parallelism installs another form. Between blocks each rank has a shard of the sequence, within a block it has its
// columns for the whole sequence (Korthikanti et al., arXiv:2205.05198).
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

class VocabularyContext;  // d9d/blocks/head/vocabulary_context.h

class TensorParallelContext {
 public:
  virtual ~TensorParallelContext() = default;

  // Collective. Gathers shards of the sequence, [B, S / W, H] -> [B, S, H]. Backward sums the ranks' gradients.
  [[nodiscard]] virtual at::Tensor enter(const at::Tensor& x) const = 0;
  // Collective. Sums summands of the whole sequence into shards of the sequence, [B, S, H] -> [B, S / W, H].
  [[nodiscard]] virtual at::Tensor leave(const at::Tensor& summand) const = 0;

  // Collective. Applies each linear to enter(x), in order. Each linear has its columns on this rank, [B, S, out / W].
  [[nodiscard]] virtual std::vector<at::Tensor> column_linears(const at::Tensor& x,
                                                               const std::vector<ModulePtr<Linear>>& linears) const;
  // Collective. Applies leave() to the product of a linear that has the rows for this rank's columns,
  // [B, S, in / W] -> [B, S / W, out]. A bias is added once, to this rank's positions of the sum.
  [[nodiscard]] virtual at::Tensor row_linear(const at::Tensor& y, const ModulePtr<Linear>& linear) const;

  // Collective. leave(kernels::silu_mul_linear(gate, up, linear)) for a linear that is_product(): [B, S, in / W] each
  // -> [B, S / W, out].
  [[nodiscard]] virtual at::Tensor row_silu_mul_linear(const at::Tensor& gate, const at::Tensor& up,
                                                       const ModulePtr<Linear>& linear) const;

  // For a head, whose vocabulary is sharded over the ranks.
  [[nodiscard]] virtual std::shared_ptr<const VocabularyContext> vocabulary() const = 0;
  [[nodiscard]] virtual DeviceMesh ranks() const = 0;  // one axis, or none in the local form
};

// This rank holds all columns; x has any shape [..., H].
class LocalTensorParallelContext final : public TensorParallelContext {
 public:
  [[nodiscard]] at::Tensor enter(const at::Tensor& x) const override { return x; }
  [[nodiscard]] at::Tensor leave(const at::Tensor& summand) const override { return summand; }
  [[nodiscard]] std::shared_ptr<const VocabularyContext> vocabulary() const override;
  [[nodiscard]] DeviceMesh ranks() const override { return {}; }
};

}  // namespace d9d
