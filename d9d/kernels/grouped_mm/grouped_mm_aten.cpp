#include <ATen/ATen.h>

#include "d9d/kernels/grouped_mm/grouped_mm_impl.h"

namespace d9d::kernels::detail {
namespace {

std::int64_t missing_features(const at::Tensor& x, std::int64_t dim) {
  const auto alignment = 16 / x.element_size();
  return (alignment - x.size(dim) % alignment) % alignment;
}

}  // namespace

at::Tensor grouped_gemm_loop(const at::Tensor& x, const at::Tensor& w, const std::vector<std::int64_t>& counts) {
  auto y = at::empty({x.size(0), w.size(2)}, x.options());
  std::int64_t row = 0;
  for (std::size_t group = 0; group < counts.size(); row += counts[group++]) {
    auto slice = y.narrow(0, row, counts[group]);
    if (counts[group] > 0) at::mm_out(slice, x.narrow(0, row, counts[group]), w[static_cast<std::int64_t>(group)]);
  }
  return y;
}

at::Tensor grouped_gemm_wgrad_loop(const at::Tensor& x, const at::Tensor& y, const std::vector<std::int64_t>& counts) {
  const auto num_groups = static_cast<std::int64_t>(counts.size());
  auto dw = at::empty({num_groups, x.size(1), y.size(1)}, x.options());
  std::int64_t row = 0;
  for (std::int64_t group = 0; group < num_groups; ++group) {
    const auto count = counts[static_cast<std::size_t>(group)];
    auto slice = dw[group];
    if (count > 0) {
      at::mm_out(slice, x.narrow(0, row, count).t(), y.narrow(0, row, count));
    } else {
      slice.zero_();
    }
    row += count;
  }
  return dw;
}

at::Tensor grouped_gemm_torch(const at::Tensor& x, const at::Tensor& w, const at::Tensor& ends) {
  if (x.is_meta()) return at::empty({x.size(0), w.size(2)}, x.options());  // shapes alone
  if (x.size(0) == 0) return at::empty({0, w.size(2)}, x.options());
  return at::_grouped_mm(pad_rows(x), pad_weights(w), ends).narrow(1, 0, w.size(2)).contiguous();
}

at::Tensor grouped_gemm_wgrad_torch(const at::Tensor& x, const at::Tensor& y, const at::Tensor& ends) {
  if (x.is_meta()) return at::empty({ends.size(0), x.size(1), y.size(1)}, x.options());
  if (x.size(0) == 0) return at::zeros({ends.size(0), x.size(1), y.size(1)}, x.options());
  return at::_grouped_mm(pad_rows(x).t(), pad_rows(y), ends)
      .narrow(1, 0, x.size(1))
      .narrow(2, 0, y.size(1))
      .contiguous();
}

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
