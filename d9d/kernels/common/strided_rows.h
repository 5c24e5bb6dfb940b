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

// Whether the address is a multiple of 16, as tensor maps and loads and stores of 16 bytes require.
#ifdef __CUDACC__
__host__ __device__
#endif
    [[nodiscard]] inline bool
    is_aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
}

// Whether rows of `num_columns` elements of `element_size` bytes that begin at `data` can be moved 16 bytes at a time.
[[nodiscard]] inline bool is_aligned(const void* data, const StridedRows& rows, std::int64_t num_columns,
                                     std::int64_t element_size) {
  return is_aligned(data) && (num_columns | rows.inner_stride | rows.outer_stride) * element_size % 16 == 0;
}

// The rows of [..., N]. nullopt if the elements of a row are not contiguous, or if the leading dims need more than two
// strides.
[[nodiscard]] std::optional<StridedRows> strided_rows(const at::TensorBase& tensor);

}  // namespace d9d::kernels::detail
