#include "d9d/blocks/linear/tensor_parallel_context.h"

#include "d9d/blocks/head/vocabulary_context.h"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear.h"

namespace d9d {

std::vector<at::Tensor> TensorParallelContext::column_linears(const at::Tensor& x,
                                                              const std::vector<ModulePtr<Linear>>& linears) const {
  return linears_of(enter(x), linears);
}

at::Tensor TensorParallelContext::row_linear(const at::Tensor& y, const ModulePtr<Linear>& linear) const {
  return leave(linear(y));
}

at::Tensor TensorParallelContext::row_silu_mul_linear(const at::Tensor& gate, const at::Tensor& up,
                                                      const ModulePtr<Linear>& linear) const {
  return leave(kernels::silu_mul_linear(gate, up, linear->weight->local(), linear->low_rank_terms()));
}

VocabularyContextPtr LocalTensorParallelContext::vocabulary() const {
  return std::make_shared<LocalVocabularyContext>();
}

}  // namespace d9d
