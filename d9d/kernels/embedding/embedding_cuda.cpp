#include <limits>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/embedding/embedding_impl.h"
#include "d9d/kernels/embedding/embedding_kernel.h"

namespace d9d::kernels::detail {

bool can_add_rows_cuda(const at::Tensor& sums, const at::Tensor& rows) {
  const auto is_narrow_or_float = [](const at::Tensor& x) {
    return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat;
  };
  return is_narrow_or_float(sums) && is_narrow_or_float(rows) && sums.is_contiguous() &&
         sums.size(0) <= std::numeric_limits<int>::max() && has_cuda_kernels(rows);
}

void add_rows_cuda(const at::Tensor& sums, const at::Tensor& ids, const at::Tensor& rows) {
  const c10::DeviceGuard guard(rows.device());
  const at::Tensor flat = rows.reshape({-1, rows.size(-1)}).contiguous();
  if (flat.numel() == 0) return;
  // Fewer digits to sort by than int64 has.
  const auto [sorted, order] = ids.reshape({-1}).to(at::kInt).sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const std::int64_t num_chunks = (flat.size(0) + kRowsOfChunk - 1) / kRowsOfChunk;
  const at::Tensor partials = at::empty({num_chunks, 2, flat.size(1)}, rows.options().dtype(at::kFloat));
  launch_add_sorted_rows({.sums_dtype = dtype_of(sums),
                          .rows_dtype = dtype_of(flat),
                          .sums = sums.mutable_data_ptr(),
                          .rows = flat.const_data_ptr(),
                          .ids = sorted.const_data_ptr<int>(),
                          .order = order.const_data_ptr<std::int64_t>(),
                          .partials = partials.mutable_data_ptr<float>(),
                          .num_rows = flat.size(0),
                          .num_columns = flat.size(1)},
                         current_cuda_stream(rows.device()));
}

}  // namespace d9d::kernels::detail
