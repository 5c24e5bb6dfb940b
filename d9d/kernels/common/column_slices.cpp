#include "d9d/kernels/common/column_slices.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace d9d::kernels::detail {
namespace {

std::int64_t num_columns(const at::Tensor& tensor, std::int64_t num_column_dims) {
  return c10::multiply_integers(tensor.sizes().slice(tensor.dim() - num_column_dims));
}

// The stride from a row to the next. nullopt unless there are several rows, evenly spaced, that do not overlap.
std::optional<std::int64_t> stride_of_rows(const at::Tensor& tensor, std::int64_t num_column_dims) {
  if (tensor.numel() == 0 || !has_dense_columns(tensor, num_column_dims)) return std::nullopt;
  std::int64_t stride = 0, num_rows = 1;
  for (std::int64_t dim = tensor.dim() - num_column_dims - 1; dim >= 0; --dim) {
    if (tensor.size(dim) == 1) continue;
    if (num_rows == 1) stride = tensor.stride(dim);
    if (tensor.stride(dim) != num_rows * stride) return std::nullopt;
    num_rows *= tensor.size(dim);
  }
  if (num_rows == 1 || stride < num_columns(tensor, num_column_dims)) return std::nullopt;
  return stride;
}

// A tensor of the sizes of `like` in the storage of `buffer`, with dense columns, `row_stride` elements from a row to
// the next, and the storage offset `offset`.
at::Tensor slice_of_rows(const at::Tensor& buffer, const at::Tensor& like, std::int64_t num_column_dims,
                         std::int64_t row_stride, std::int64_t offset) {
  c10::DimVector strides(like.sizes().begin(), like.sizes().end());
  std::int64_t stride = 1;
  for (std::int64_t dim = like.dim() - 1; dim >= 0; --dim) {
    if (dim == like.dim() - num_column_dims - 1) stride = row_stride;
    strides[static_cast<std::size_t>(dim)] = stride;
    stride *= like.size(dim);
  }
  // A view that autograd tracks would keep its base alive, and is_only_reference() would find a second tensor.
  const at::AutoDispatchBelowADInplaceOrView no_views;
  return buffer.as_strided(like.sizes(), strides, offset);
}

}  // namespace

bool has_dense_columns(const at::Tensor& tensor, std::int64_t num_column_dims) {
  std::int64_t stride = 1;
  for (std::int64_t dim = tensor.dim() - 1; dim >= tensor.dim() - num_column_dims; --dim) {
    if (tensor.size(dim) != 1 && tensor.stride(dim) != stride) return false;
    stride *= tensor.size(dim);
  }
  return true;
}

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

std::int64_t columns_before(const at::Tensor& slice, std::int64_t num_column_dims) {
  const std::optional<std::int64_t> stride = stride_of_rows(slice, num_column_dims);
  if (!stride) return 0;
  const std::int64_t count = slice.storage_offset() % *stride;
  return count + num_columns(slice, num_column_dims) <= *stride ? count : 0;
}

at::Tensor empty_behind_columns(const at::Tensor& like, std::int64_t count, std::int64_t num_column_dims) {
  const std::int64_t row_stride = count + num_columns(like, num_column_dims);
  const auto num_row_dims = static_cast<std::size_t>(like.dim() - num_column_dims);
  const at::Tensor buffer =
      at::empty({c10::multiply_integers(like.sizes().slice(0, num_row_dims)) * row_stride}, like.options());
  return slice_of_rows(buffer, like, num_column_dims, row_stride, count);
}

std::optional<std::pair<at::Tensor, at::Tensor>> column_slices_before(const at::Tensor& slice, const at::Tensor& a,
                                                                      const at::Tensor& b,
                                                                      std::int64_t num_column_dims) {
  const auto num_row_dims = static_cast<std::size_t>(slice.dim() - num_column_dims);
  const auto has_such_rows = [&](const at::Tensor& x) {
    return x.dim() == slice.dim() && x.scalar_type() == slice.scalar_type() && x.device() == slice.device() &&
           x.sizes().slice(0, num_row_dims) == slice.sizes().slice(0, num_row_dims);
  };
  if (!has_such_rows(a) || !has_such_rows(b)) return std::nullopt;
  const std::optional<std::int64_t> stride = stride_of_rows(slice, num_column_dims);
  const std::int64_t columns_of_a = num_columns(a, num_column_dims);
  const std::int64_t count = columns_of_a + num_columns(b, num_column_dims);
  const std::int64_t first = slice.storage_offset() - count;
  if (!stride || first < 0 || count + num_columns(slice, num_column_dims) > *stride) return std::nullopt;
  return std::pair(slice_of_rows(slice, a, num_column_dims, *stride, first),
                   slice_of_rows(slice, b, num_column_dims, *stride, first + columns_of_a));
}

bool is_only_reference(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

}  // namespace d9d::kernels::detail
