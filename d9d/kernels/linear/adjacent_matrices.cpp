#include "d9d/kernels/linear/adjacent_matrices.h"

#include <ATen/ATen.h>

namespace d9d::kernels::detail {
namespace {

bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().is_alias_of(b.storage()) && a.scalar_type() == b.scalar_type() && a.dim() == 2 && b.dim() == 2;
}

}  // namespace

std::vector<Run> runs(std::size_t count, const std::function<bool(std::size_t i)>& joins_next) {
  std::vector<Run> result;
  for (std::size_t i = 0; i < count; ++i) {
    const bool continues = i > 0 && joins_next(i - 1);
    if (continues) {
      ++result.back().count;
    } else {
      result.push_back({.first = i, .count = 1});
    }
  }
  return result;
}

bool follows_in_rows(const at::Tensor& matrix, const at::Tensor& next) {
  return share_storage(matrix, next) && matrix.size(1) == next.size(1) && matrix.is_contiguous() &&
         next.is_contiguous() && next.storage_offset() == matrix.storage_offset() + matrix.numel();
}

bool follows_in_columns(const at::Tensor& matrix, const at::Tensor& next) {
  if (!share_storage(matrix, next) || matrix.size(0) != next.size(0)) return false;
  const auto has_columns = [](const at::Tensor& each) { return each.size(1) > 0 && each.stride(1) == 1; };
  return has_columns(matrix) && has_columns(next) && matrix.stride(0) == next.stride(0) &&
         matrix.size(1) + next.size(1) <= matrix.stride(0) &&
         next.storage_offset() == matrix.storage_offset() + matrix.size(1);
}

at::Tensor joined_rows(std::span<const at::Tensor> matrices) {
  if (matrices.size() == 1) return matrices.front();
  std::int64_t rows = 0;
  for (const at::Tensor& matrix : matrices) rows += matrix.size(0);
  return matrices.front().as_strided({rows, matrices.front().size(1)}, {matrices.front().size(1), 1});
}

at::Tensor joined_columns(std::span<const at::Tensor> matrices) {
  if (matrices.size() == 1) return matrices.front();
  std::int64_t columns = 0;
  for (const at::Tensor& matrix : matrices) columns += matrix.size(1);
  return matrices.front().as_strided({matrices.front().size(0), columns}, {matrices.front().stride(0), 1});
}

}  // namespace d9d::kernels::detail
