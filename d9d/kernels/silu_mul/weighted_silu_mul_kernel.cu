// Formula: out = weight * silu(gate) * up; grad_gate = weight * grad * up * s * (1 + gate * (1 - s)),
//          grad_up = weight * grad * gate * s, grad_weight = sum over columns of grad * silu(gate) * up.
// Legend:  s = sigmoid(gate); each row has one weight.
// Mapping: forward: a thread processes 16 bytes of a row, or one element if a tensor is not aligned to 16 bytes;
//          backward: one warp per row.
// Numerics: fp32 (fp64 for fp64 inputs), fast exp and division for half precision; rounded once, sums in fixed order.
// Traffic: every input is read once, every result is written once.
#include <algorithm>

#include "d9d/kernels/device/activation.cuh"
#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/reduce.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/silu_mul/silu_mul_kernel.h"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 256;
constexpr int kWarpsOfBlock = kBlock / kWarpSize;

template <class T, int kCount>
__device__ __forceinline__ Vec<T, kCount>& piece_at(void* data, std::int64_t element) {
  return *reinterpret_cast<Vec<T, kCount>*>(static_cast<T*>(data) + element);
}

template <class T, int kCount>
__global__ void __launch_bounds__(kBlock) weighted_silu_mul_forward(const WeightedSiluMulForwardArgs args) {
  pdl_wait_and_trigger();
  using A = Accumulator<T>;
  using P = Vec<T, kCount>;
  const std::int64_t pieces_of_row = args.inputs.num_columns / kCount;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (thread >= args.inputs.num_rows * pieces_of_row) return;
  const std::int64_t row = thread <= UINT32_MAX
                               ? static_cast<std::uint32_t>(thread) / static_cast<std::uint32_t>(pieces_of_row)
                               : thread / pieces_of_row;
  const A weight = static_cast<const A*>(args.inputs.weights)[row];
  const std::int64_t column = (thread - row * pieces_of_row) * kCount;
  const P gate = load_vec<T, kCount>(args.inputs.gate, row * args.inputs.gate_stride + column);
  const P up = load_vec<T, kCount>(args.inputs.up, row * args.inputs.up_stride + column);
  P out;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const A g = widen(gate.value[j]);
    out.value[j] = narrow<T>(weight * (silu_by_division<T>(g) * widen(up.value[j])));
  }
  static_cast<P*>(args.out)[thread] = out;
}

template <class T, int kCount>
__global__ void __launch_bounds__(kBlock) weighted_silu_mul_backward(const WeightedSiluMulBackwardArgs args) {
  pdl_wait_and_trigger();
  using A = Accumulator<T>;
  using P = Vec<T, kCount>;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarpsOfBlock + threadIdx.x / kWarpSize;
  if (row >= args.inputs.num_rows) return;
  const int lane = threadIdx.x % kWarpSize;
  const A weight = static_cast<const A*>(args.inputs.weights)[row];
  A sum = 0;
#pragma unroll 2
  for (std::int64_t column = lane * kCount; column < args.inputs.num_columns; column += kWarpSize * kCount) {
    const P gate = load_vec<T, kCount>(args.inputs.gate, row * args.inputs.gate_stride + column);
    const P up = load_vec<T, kCount>(args.inputs.up, row * args.inputs.up_stride + column);
    const P grad = load_vec<T, kCount>(args.grad_out, row * args.inputs.num_columns + column);
    P grad_gate, grad_up;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const A g = widen(gate.value[j]);
      const A u = widen(up.value[j]);
      const A d = widen(grad.value[j]);
      const A s = sigmoid<T>(g);
      sum += d * (g * s * u);
      grad_gate.value[j] = narrow<T>(weight * d * u * s * (1 + g * (1 - s)));
      grad_up.value[j] = narrow<T>(weight * d * g * s);
    }
    piece_at<T, kCount>(args.grad_gate, row * args.grad_stride + column) = grad_gate;
    piece_at<T, kCount>(args.grad_up, row * args.grad_stride + column) = grad_up;
  }
  sum = warp_sum(sum);
  if (lane == 0) static_cast<A*>(args.grad_weights)[row] = sum;
}

[[nodiscard]] bool are_aligned(std::initializer_list<const void*> pointers) {
  return std::ranges::all_of(pointers, [](const void* pointer) { return is_aligned(pointer); });
}

// Calls function(Element<T>, integral_constant of the elements of a piece): 16 bytes, or one element if a tensor is not
// aligned.
template <class Function>
void with_piece(const WeightedSiluMulInputs& inputs, bool are_all_aligned, const Function& function) {
  with_element_type(inputs.dtype, [&]<class T>(Element<T> element) {
    if (are_all_aligned && (inputs.num_columns | inputs.gate_stride | inputs.up_stride) % kWidth<T> == 0)
      return function(element, std::integral_constant<int, kWidth<T>>());
    return function(element, std::integral_constant<int, 1>());
  });
}

}  // namespace

void d9d_launch_weighted_silu_mul_forward(const WeightedSiluMulForwardArgs& args, CUstream_st* stream) {
  const WeightedSiluMulInputs& inputs = args.inputs;
  if (inputs.num_rows == 0 || inputs.num_columns == 0) return;
  with_piece(inputs, are_aligned({inputs.gate, inputs.up, args.out}),
             [&]<class T, int kCount>(Element<T>, std::integral_constant<int, kCount>) {
               const unsigned grid = num_blocks(inputs.num_rows * (inputs.num_columns / kCount), kBlock);
               launch_pdl(weighted_silu_mul_forward<T, kCount>, {grid, kBlock}, stream, args);
             });
  check_launch("weighted_silu_mul");
}

void d9d_launch_weighted_silu_mul_backward(const WeightedSiluMulBackwardArgs& args, CUstream_st* stream) {
  const WeightedSiluMulInputs& inputs = args.inputs;
  if (inputs.num_rows == 0) return;
  with_piece(inputs, are_aligned({inputs.gate, inputs.up, args.grad_out, args.grad_gate, args.grad_up}),
             [&]<class T, int kCount>(Element<T>, std::integral_constant<int, kCount>) {
               const unsigned grid = num_blocks(inputs.num_rows, kWarpsOfBlock);
               launch_pdl(weighted_silu_mul_backward<T, kCount>, {grid, kBlock}, stream, args);
             });
  check_launch("weighted_silu_mul");
}

}  // namespace d9d::kernels::detail
