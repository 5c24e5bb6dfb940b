#include "d9d/kernels/device/column_slices.h"

#include <ATen/ATen.h>

namespace d9d::kernels::detail {
namespace {

std::int64_t num_columns(const at::Tensor& tensor, std::int64_t num_column_dims) {
  return c10::multiply_integers(tensor.sizes().slice(tensor.dim() - num_column_dims));
}

bool has_dense_columns(const at::Tensor& tensor, std::int64_t num_column_dims) {
  std::int64_t stride = 1;
  for (std::int64_t dim = tensor.dim() - 1; dim >= tensor.dim() - num_column_dims; --dim) {
    if (tensor.size(dim) != 1 && tensor.stride(dim) != stride) return false;
    stride *= tensor.size(dim);
  }
  return true;
}

}  // namespace

bool are_adjacent_columns(const at::Tensor& a, const at::Tensor& b, std::int64_t num_column_dims) {
  const auto num_row_dims = static_cast<std::size_t>(a.dim() - num_column_dims);
  return a.dim() == b.dim() && a.dim() >= num_column_dims && a.scalar_type() == b.scalar_type() && a.is_alias_of(b) &&
         a.storage_offset() + num_columns(a, num_column_dims) == b.storage_offset() &&
         a.sizes().slice(0, num_row_dims) == b.sizes().slice(0, num_row_dims) &&
         a.strides().slice(0, num_row_dims) == b.strides().slice(0, num_row_dims) &&
         has_dense_columns(a, num_column_dims) && has_dense_columns(b, num_column_dims);
}

std::pair<at::Tensor, at::Tensor> empty_column_slices(const at::Tensor& a, const at::Tensor& b,
                                                      std::int64_t num_column_dims) {
  if (!are_adjacent_columns(a, b, num_column_dims))
    return {at::empty(a.sizes(), a.options()), at::empty(b.sizes(), b.options())};
  const auto num_row_dims = static_cast<std::size_t>(a.dim() - num_column_dims);
  const std::int64_t columns_of_a = num_columns(a, num_column_dims);
  const std::int64_t columns_of_b = num_columns(b, num_column_dims);
  std::vector<std::int64_t> sizes = a.sizes().slice(0, num_row_dims).vec();
  sizes.push_back(columns_of_a + columns_of_b);
  const at::Tensor both = at::empty(sizes, a.options());
  const auto slice = [&](const at::Tensor& like, std::int64_t first, std::int64_t size) {
    return both.narrow(-1, first, size).unflatten(-1, like.sizes().slice(num_row_dims));
  };
  return {slice(a, 0, columns_of_a), slice(b, columns_of_a, columns_of_b)};
}

}  // namespace d9d::kernels::detail
