#include "d9d/kernels/grouped_mm/padded_features.h"

#include <ATen/ATen.h>

namespace d9d::kernels::detail {
namespace {

std::int64_t missing_features(const at::Tensor& x, std::int64_t dim) {
  const auto alignment = 16 / x.element_size();
  return (alignment - x.size(dim) % alignment) % alignment;
}

}  // namespace

at::Tensor pad_rows(const at::Tensor& x) {
  const auto missing = missing_features(x, 1);
  return missing == 0 ? x.contiguous() : at::constant_pad_nd(x, {0, missing});
}

at::Tensor pad_weights(const at::Tensor& w) {
  const auto missing_in = missing_features(w, 1);
  const auto missing_out = missing_features(w, 2);
  const bool is_transposed = w.stride(1) == 1 && w.transpose(1, 2).is_contiguous();
  if (missing_in == 0 && missing_out == 0) return is_transposed ? w : w.contiguous();
  return at::constant_pad_nd(w, {0, missing_out, 0, missing_in});
}

}  // namespace d9d::kernels::detail
