// Formula: out = silu(gate) * up; grad_gate = grad * up * s * (1 + gate * (1 - s)), grad_up = grad * gate * s.
// Legend:  s = sigmoid(gate), silu(x) = x * sigmoid(x); rows of gate and up may have strides.
// Mapping: a thread processes 16 bytes of a row, or one element if an input is not aligned to 16 bytes.
// Numerics: fp32 (fp64 for fp64 inputs), fast exp and division for half precision; rounded once.
// Traffic: every input is read once, every result is written once.
#include "d9d/kernels/device/activation.cuh"
#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/silu_mul/silu_mul_kernel.h"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 256;

// The row and the first column of piece `index`; a piece is W = `width` columns of a row.
struct Place {
  std::int64_t row;
  std::int64_t column;
};
__device__ __forceinline__ Place place_of(std::int64_t index, std::int64_t pieces_per_row, int width) {
  if (index < pieces_per_row) return {0, index * width};  // always the case if all tensors are contiguous: one row
  if (index <= UINT32_MAX) {
    const auto row = static_cast<std::uint32_t>(index) / static_cast<std::uint32_t>(pieces_per_row);
    return {row, (index - row * pieces_per_row) * width};
  }
  return {index / pieces_per_row, index % pieces_per_row * width};
}

template <class T, int W>
__device__ __forceinline__ Vec<T, W> load(const void* data, const StridedRows& rows, const Place& place) {
  return load_vec<T, W>(data, row_offset(rows, place.row) + place.column);
}

template <class T, int W>
__global__ void __launch_bounds__(kBlock) silu_mul_forward(const SiluMulForwardArgs args, std::int64_t num_pieces) {
  pdl_wait_and_trigger();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (index >= num_pieces) return;
  const Place place = place_of(index, args.inputs.num_columns / W, W);
  const auto gate = load<T, W>(args.inputs.gate, args.inputs.gate_rows, place);
  const auto up = load<T, W>(args.inputs.up, args.inputs.up_rows, place);
  Vec<T, W> out;
#pragma unroll
  for (int j = 0; j < W; ++j) out.value[j] = narrow<T>(silu<T>(widen(gate.value[j])) * widen(up.value[j]));
  reinterpret_cast<Vec<T, W>*>(args.out)[index] = out;
}

template <class T, int W>
__global__ void __launch_bounds__(kBlock) silu_mul_backward(const SiluMulBackwardArgs args, std::int64_t num_pieces) {
  pdl_wait_and_trigger();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (index >= num_pieces) return;
  const Place place = place_of(index, args.inputs.num_columns / W, W);
  const auto grad = load<T, W>(args.grad_out, args.grad_out_rows, place);
  const auto gate = load<T, W>(args.inputs.gate, args.inputs.gate_rows, place);
  const auto up = load<T, W>(args.inputs.up, args.inputs.up_rows, place);
  Vec<T, W> grad_gate, grad_up;
#pragma unroll
  for (int j = 0; j < W; ++j) {
    const Accumulator<T> d = widen(grad.value[j]);
    const Accumulator<T> g = widen(gate.value[j]);
    const Accumulator<T> s = sigmoid<T>(g);
    grad_gate.value[j] = narrow<T>(d * widen(up.value[j]) * s * (1 + g * (1 - s)));
    grad_up.value[j] = narrow<T>(d * (g * s));
  }
  const std::int64_t to = row_offset(args.grad_rows, place.row) + place.column;
  if (args.grad_gate != nullptr) store_vec(grad_gate, args.grad_gate, to);
  if (args.grad_up != nullptr) store_vec(grad_up, args.grad_up, to);
}

// Calls function(Element<T>, integral_constant of the elements of a piece, number of pieces). A piece is 16 bytes, or
// one element if an input is not aligned.
template <class Function>
void with_piece(const SiluMulInputs& inputs, bool is_rest_aligned, const Function& function) {
  with_element_type(inputs.dtype, [&]<class T>(Element<T> element) {
    const auto is_row_aligned = [&](const void* data, const StridedRows& rows) {
      return is_aligned(data, rows, inputs.num_columns, sizeof(T));
    };
    const std::int64_t size = inputs.num_rows * inputs.num_columns;
    if (is_rest_aligned && is_row_aligned(inputs.gate, inputs.gate_rows) && is_row_aligned(inputs.up, inputs.up_rows))
      return function(element, std::integral_constant<int, kWidth<T>>(), size / kWidth<T>);
    return function(element, std::integral_constant<int, 1>(), size);
  });
}

[[nodiscard]] std::int64_t size_of(Dtype dtype) {
  std::int64_t size = 0;
  with_element_type(dtype, [&]<class T>(Element<T>) { size = sizeof(T); });
  return size;
}

}  // namespace

void d9d_launch_silu_mul_forward(const SiluMulForwardArgs& args, CUstream_st* stream) {
  with_piece(args.inputs, /*is_rest_aligned=*/true,
             [&]<class T, int W>(Element<T>, std::integral_constant<int, W>, std::int64_t num_pieces) {
               launch_pdl(silu_mul_forward<T, W>, {num_blocks(num_pieces, kBlock), kBlock}, stream, args, num_pieces);
             });
  check_launch("silu_mul");
}

void d9d_launch_silu_mul_backward(const SiluMulBackwardArgs& args, CUstream_st* stream) {
  const auto is_rest_aligned =
      is_aligned(args.grad_out, args.grad_out_rows, args.inputs.num_columns, size_of(args.inputs.dtype));
  with_piece(args.inputs, is_rest_aligned,
             [&]<class T, int W>(Element<T>, std::integral_constant<int, W>, std::int64_t num_pieces) {
               launch_pdl(silu_mul_backward<T, W>, {num_blocks(num_pieces, kBlock), kBlock}, stream, args, num_pieces);
             });
  check_launch("silu_mul");
}

}  // namespace d9d::kernels::detail
