// Where the rows of a tensor begin whose leading dims have strides, so that kernels read it without a copy: contiguous
// rows, a slice of columns, or the heads of a slice of a fused projection.
//
// Example
//   const std::optional<StridedRows> rows = strided_rows(qkv.narrow(2, 0, 16));    // [B, S, 16 of 32, D]
#pragma once

#include <cstdint>
#include <optional>

namespace at {
class TensorBase;
}

namespace d9d::kernels::detail {

// Row r begins at element (r / inner_rows) * outer_stride + (r % inner_rows) * inner_stride.
struct StridedRows {
  std::int64_t inner_rows = 1;
  std::int64_t inner_stride = 0;
  std::int64_t outer_stride = 0;

  [[nodiscard]] static StridedRows contiguous(std::int64_t num_rows, std::int64_t num_columns) {
    return {.inner_rows = num_rows > 0 ? num_rows : 1, .inner_stride = num_columns};
  }
};

// The rows of [..., N]. nullopt if the elements of a row are not contiguous, or if the leading dims need more than two
// strides.
[[nodiscard]] std::optional<StridedRows> strided_rows(const at::TensorBase& tensor);

}  // namespace d9d::kernels::detail
