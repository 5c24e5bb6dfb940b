#include "d9d/kernels/linear/cublas_gemm.h"

#include <optional>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "d9d/core/device/cuda_stream.h"
#include "d9d/kernels/common/cuda_kernels.h"
#include "d9d/kernels/common/row_tensor.h"
#include "d9d/kernels/linear/gemm.h"

namespace d9d::kernels::detail {
namespace {

// The kernel was measured to be faster (benchmarks/results/) from this many elements of the result, terms of each sum,
// and bytes of the result per term on.
constexpr std::int64_t kMinResults = std::int64_t{1} << 24;
constexpr std::int64_t kMinTerms = 1024;
constexpr std::int64_t kMinBytesPerTerm = 20 * 1024;

std::optional<CublasRows> rows_of(const at::Tensor& x) {
  const bool are_aligned = is_aligned(x) && x.stride(0) * x.element_size() % 16 == 0;
  if (!are_aligned || x.stride(1) != 1 || x.stride(0) < x.size(1)) return std::nullopt;
  return CublasRows{.data = x.const_data_ptr(), .stride = x.stride(0)};
}

bool takes_long_to_write(const at::Tensor& out, std::int64_t num_terms) {
  return out.numel() >= kMinResults && num_terms >= kMinTerms &&
         out.numel() * out.element_size() >= kMinBytesPerTerm * num_terms;
}

}  // namespace

bool write_rows_product_by_cublas(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight) {
  if (!takes_long_to_write(out, x.size(1)) || !has_cuda_kernels(x) || x.element_size() != 2) return false;
  const bool is_out_float = out.scalar_type() == at::kFloat;
  if (weight.scalar_type() != x.scalar_type() || (!is_out_float && out.scalar_type() != x.scalar_type())) return false;
  const auto rows = rows_of(x), columns = rows_of(weight), results = rows_of(out);
  if (!rows || !columns || !results) return false;
  const c10::DeviceGuard guard(x.device());
  return write_cublas_product({.device = x.device().index(),
                               .dtype = dtype_of(x),
                               .is_out_float = is_out_float,
                               .num_rows = out.size(0),
                               .num_columns = out.size(1),
                               .num_terms = x.size(1),
                               .x = *rows,
                               .weight = *columns,
                               .out = out.mutable_data_ptr(),
                               .out_stride = results->stride},
                              current_cuda_stream(x.device()));
}

}  // namespace d9d::kernels::detail
