#include "d9d/kernels/linear_cross_entropy/gradient_filter.h"

#include <ATen/ATen.h>

namespace d9d::kernels::detail {

at::Tensor kept_columns_aten(const at::Tensor& grad_logits, const at::Tensor& threshold) {
  return grad_logits.abs().sub_(threshold.unsqueeze(1)).amax(0).lt(0).logical_not_();
}

}  // namespace d9d::kernels::detail
