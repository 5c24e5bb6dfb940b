#include "d9d/modules/blocks/linear/tensor_parallel_context.h"

namespace d9d {

std::vector<at::Tensor> TensorParallelContext::column_linears(const at::Tensor& x,
                                                              const std::vector<ModulePtr<Linear>>& linears) const {
  const at::Tensor whole = enter(x);
  std::vector<at::Tensor> columns;
  for (const ModulePtr<Linear>& linear : linears) columns.push_back(linear(whole));
  return columns;
}

at::Tensor TensorParallelContext::row_linear(const at::Tensor& y, const ModulePtr<Linear>& linear) const {
  return leave(linear(y));
}

}  // namespace d9d
