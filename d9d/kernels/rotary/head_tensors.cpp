#include "d9d/kernels/rotary/head_tensors.h"

#include <limits>

#include <ATen/ATen.h>

#include "d9d/kernels/common/row_tensor.h"

namespace d9d::kernels::detail {
namespace {

constexpr std::int64_t kBytesOfPiece = 16;
constexpr std::int64_t kMaxSlots = 32;  // one per thread of a warp

std::int64_t bytes_of_stride(const at::Tensor& heads, std::int64_t dim) {
  return heads.stride(dim) * heads.element_size();
}

}  // namespace

bool fits_heads_kernel(const at::Tensor& heads) {
  if (heads.stride(3) != 1 || !is_aligned(heads)) return false;
  for (const std::int64_t dim : {1, 2}) {
    const std::int64_t bytes = bytes_of_stride(heads, dim);
    if (bytes < 0 || bytes > std::numeric_limits<std::uint32_t>::max()) return false;
  }
  return (bytes_of_stride(heads, 0) | bytes_of_stride(heads, 1) | bytes_of_stride(heads, 2)) % kBytesOfPiece == 0;
}

bool has_heads_kernel(at::ScalarType dtype, std::int64_t head_dim, std::int64_t rotary_dim) {
  if (dtype == at::kDouble || rotary_dim == 0) return false;
  const std::int64_t width = kBytesOfPiece / static_cast<std::int64_t>(c10::elementSize(dtype));
  return head_dim % width == 0 && rotary_dim % (2 * width) == 0 && num_slots(head_dim, rotary_dim, width) <= kMaxSlots;
}

at::Tensor fitting_heads(const at::Tensor& heads) {
  return fits_heads_kernel(heads) ? heads : heads.clone(at::MemoryFormat::Contiguous);
}

HeadsView view_of(const at::Tensor& fitting) {
  return {.data = fitting.const_data_ptr(),
          .batch_bytes = bytes_of_stride(fitting, 0),
          .position_bytes = static_cast<std::uint32_t>(bytes_of_stride(fitting, 1)),
          .head_bytes = static_cast<std::uint32_t>(bytes_of_stride(fitting, 2))};
}

at::Tensor fitting_numbers(const at::Tensor& numbers, at::ScalarType dtype) {
  const at::Tensor converted = numbers.to(dtype).contiguous();
  return is_aligned(converted) ? converted : converted.clone();
}

void join_batches(HeadsShape& shape, std::initializer_list<const HeadsView*> views) {
  if (shape.num_table_rows != shape.num_tokens) return;
  for (const HeadsView* view : views)
    if (view->data != nullptr &&
        view->batch_bytes != shape.num_positions * static_cast<std::int64_t>(view->position_bytes))
      return;
  shape.num_positions = shape.num_tokens;
}

}  // namespace d9d::kernels::detail
