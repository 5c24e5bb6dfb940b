#include "d9d/kernels/common/strided_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace d9d::kernels::detail::strided_rows_test {
namespace {

// The rows that the description refers to, as a contiguous tensor.
at::Tensor read_rows(const at::Tensor& tensor) {
  const auto rows = strided_rows(tensor);
  if (!rows) return {};
  const at::Tensor result = at::empty({tensor.numel() / tensor.size(-1), tensor.size(-1)}, tensor.options());
  for (std::int64_t row = 0; row < result.size(0); ++row) {
    const std::int64_t offset =
        row / rows->inner_rows * rows->outer_stride + row % rows->inner_rows * rows->inner_stride;
    result[row].copy_(at::from_blob(tensor.data_ptr<float>() + offset, {tensor.size(-1)}, at::kFloat));
  }
  return result.view(tensor.sizes());
}

TEST(StridedRows, Are_found_in_every_tensor_of_two_strides) {
  const at::Tensor x = at::arange(4 * 5 * 6 * 8, at::kFloat).view({4, 5, 6, 8});
  for (const at::Tensor& view :
       {x, x[0][0][0], x.narrow(2, 1, 3), x.narrow(1, 1, 3), x.narrow(3, 2, 5), x.transpose(1, 2).select(0, 1),
        x.narrow(2, 2, 1), x.select(2, 3), x.slice(0, 0, 4, 2), x.narrow(0, 1, 1).narrow(2, 0, 2),
        x[0][0].slice(0, 0, 6, 4), x[0].narrow(0, 1, 1).expand({3, 6, 8}), x.view({4, 30, 8}).narrow(2, 7, 1)})
    EXPECT_TRUE(at::equal(read_rows(view), view)) << view.sizes() << " " << view.strides();
}

TEST(StridedRows, Are_not_found_where_three_strides_are_needed) {
  const at::Tensor x = at::zeros({4, 5, 6, 8});
  EXPECT_FALSE(strided_rows(x.permute({2, 1, 0, 3})));
  EXPECT_FALSE(strided_rows(x.transpose(0, 1)));
  EXPECT_FALSE(strided_rows(x.transpose(2, 3)));
  EXPECT_FALSE(strided_rows(x.slice(3, 0, 8, 2)));
}

}  // namespace
}  // namespace d9d::kernels::detail::strided_rows_test
