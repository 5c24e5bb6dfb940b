#include <ATen/ATen.h>

#include "d9d/kernels/grouped_mm/grouped_mm_impl.h"
#include "d9d/kernels/grouped_mm/padded_features.h"

namespace d9d::kernels::detail {
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

}  // namespace d9d::kernels::detail
