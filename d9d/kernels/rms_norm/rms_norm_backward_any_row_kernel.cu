// Formula: as rms_norm_backward_kernel.cu.
// Legend:  rows of any type, alignment and length.
// Mapping: backward_in_registers: a block holds whole rows, of which a thread has up to 4 elements each.
//          backward_in_memory: a block takes a row of any length, and sums grad_weight in global memory.
// Numerics: fp32 (fp64 for fp64 rows), rounded once; the order of all sums depends only on sizes.
// Traffic: backward_in_registers reads x and grad once, backward_in_memory twice; grad_x is written once.
#include <algorithm>
#include <cstring>

#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/rms_norm/rms_norm_kernel.h"
#include "d9d/kernels/rms_norm/rms_norm_rows.cuh"

namespace d9d::kernels::detail {
namespace {

constexpr int kColumnsOfThread = 4;
// Rows that a block processes at a time, while the loads of the next ones are in flight.
template <class T>
constexpr int kRowsAtOnce = sizeof(T) == 8 ? 1 : 2;

// The bits of an element in a register of its own. They are not converted before their use, so that all loads stay in
// flight together.
template <class T>
using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

template <class T>
__device__ __forceinline__ Bits<T> load_bits(const T* from) {
  Bits<T> bits;
  const auto address = __cvta_generic_to_global(from);
  if constexpr (sizeof(T) == 2) asm volatile("ld.global.u16 %0, [%1];" : "=r"(bits) : "l"(address));
  if constexpr (sizeof(T) == 4) asm volatile("ld.global.u32 %0, [%1];" : "=r"(bits) : "l"(address));
  if constexpr (sizeof(T) == 8) asm volatile("ld.global.u64 %0, [%1];" : "=l"(bits) : "l"(address));
  return bits;
}

template <class T>
__device__ __forceinline__ Accumulator<T> widen_bits(Bits<T> bits) {
  T value;
  memcpy(&value, &bits, sizeof(T));
  return widen(value);
}

// The columns that a thread of a block has of each row.
template <int kBlock>
struct ThreadColumns {
  const RmsNormBackwardArgs& args;
  int num_columns;

  __device__ __forceinline__ int at(int i) const { return static_cast<int>(threadIdx.x) + i * kBlock; }
  __device__ __forceinline__ bool is_mine(int i) const { return at(i) < num_columns; }

  // Rows and columns beyond the last load the last one again, so that no load waits for a condition.
  template <class T>
  __device__ __forceinline__ void load(const void* data, const StridedRows& rows, std::int64_t row,
                                       Bits<T> (&values)[kColumnsOfThread]) const {
    const T* const begin = static_cast<const T*>(data) + row_offset(rows, min(row, args.num_rows - 1));
#pragma unroll
    for (int i = 0; i < kColumnsOfThread; ++i) values[i] = load_bits(begin + min(at(i), num_columns - 1));
  }
};

// The elements of a thread in the rows that its block processes at a time.
template <class T>
using RowsOfThread = Bits<T>[kRowsAtOnce<T>][kColumnsOfThread];

template <class T, class Columns>
__device__ __forceinline__ void load_rows(const Columns& columns, std::int64_t first_row, RowsOfThread<T>& x,
                                          RowsOfThread<T>& grad_out) {
  const RmsNormBackwardArgs& args = columns.args;
#pragma unroll
  for (int r = 0; r < kRowsAtOnce<T>; ++r) {
    columns.template load<T>(args.x, args.x_rows, first_row + r, x[r]);
    columns.template load<T>(args.grad_out, args.grad_out_rows, first_row + r, grad_out[r]);
  }
}

// Writes grad_x of the thread's columns of a row, plus `added`, and adds their part of grad_weight to `grad_weights`.
template <class T, class Columns, class A = Accumulator<T>>
__device__ __forceinline__ void write_row(const Columns& columns, std::int64_t row, A inv_rms, A x_coefficient,
                                          const A (&weights)[kColumnsOfThread], const A (&value)[kColumnsOfThread],
                                          const A (&grad)[kColumnsOfThread], const Bits<T> (&added)[kColumnsOfThread],
                                          A (&grad_weights)[kColumnsOfThread]) {
  const RmsNormBackwardArgs& args = columns.args;
#pragma unroll
  for (int i = 0; i < kColumnsOfThread; ++i) {
    const A scaled = grad[i] * inv_rms;
    grad_weights[i] += scaled * value[i];
    if (columns.is_mine(i) && args.grad_x != nullptr) {
      const A grad_of_norm = scaled * weights[i] - value[i] * x_coefficient;
      static_cast<T*>(args.grad_x)[row * args.num_columns + columns.at(i)] =
          narrow<T>(grad_of_norm + widen_bits<T>(added[i]));
    }
  }
}

// A block processes rows of any alignment and up to kBlock * kColumnsOfThread elements, which it reads once.
template <class T, int kBlock>
__global__ void __launch_bounds__(kBlock, sizeof(T) == 8 ? 1 : 1024 / kBlock)
    backward_in_registers(const RmsNormBackwardArgs args) {
  pdl_wait_and_trigger();
  using A = Accumulator<T>;
  constexpr int kRows = kRowsAtOnce<T>;
  const ThreadColumns<kBlock> columns{.args = args, .num_columns = static_cast<int>(args.num_columns)};
  A weights[kColumnsOfThread] = {};
  A grad_weights[kColumnsOfThread] = {};
#pragma unroll
  for (int i = 0; i < kColumnsOfThread; ++i)
    if (columns.is_mine(i))
      weights[i] = weight_at<A>(args.weight, args.weight_dtype, columns.at(i), args.zero_centered);
  const A inv_n = A{1} / static_cast<A>(args.num_columns);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kRows;
  std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * kRows;
  RowsOfThread<T> x;
  RowsOfThread<T> grad_out;
  load_rows<T>(columns, first_row, x, grad_out);
  for (; first_row < args.num_rows; first_row += step) {
    A value[kRows][kColumnsOfThread];
    A grad[kRows][kColumnsOfThread];
    A sums[2 * kRows] = {};  // of squares, and of products with the gradient
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kColumnsOfThread; ++i) {
        value[r][i] = columns.is_mine(i) ? widen_bits<T>(x[r][i]) : A{0};
        grad[r][i] = columns.is_mine(i) ? widen_bits<T>(grad_out[r][i]) : A{0};
        sums[2 * r] += value[r][i] * value[r][i];
        sums[2 * r + 1] += grad[r][i] * weights[i] * value[r][i];
      }
    }
    load_rows<T>(columns, first_row + step, x, grad_out);
    block_sums<kBlock>(sums);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row = first_row + r;
      if (row >= args.num_rows) break;
      const A inv_rms = rsqrt(sums[2 * r] * inv_n + static_cast<A>(args.eps));
      const A mean_grad_dot_x = sums[2 * r + 1] * inv_n;
      const A x_coefficient = mean_grad_dot_x * inv_rms * inv_rms * inv_rms;
      Bits<T> added[kColumnsOfThread] = {};
      if (args.grad_sum != nullptr) columns.template load<T>(args.grad_sum, args.grad_sum_rows, row, added);
      write_row<T>(columns, row, inv_rms, x_coefficient, weights, value[r], grad[r], added, grad_weights);
    }
  }
  if (args.partials == nullptr) return;
#pragma unroll
  for (int i = 0; i < kColumnsOfThread; ++i)
    if (columns.is_mine(i))
      static_cast<A*>(args.partials)[blockIdx.x * args.num_columns + columns.at(i)] = grad_weights[i];
}

constexpr int kBlockOfLongRow = 1024;

// A block processes rows of any length, which it reads twice. A thread keeps the partial sums of its columns in global
// memory.
template <class T>
__global__ void __launch_bounds__(kBlockOfLongRow, 2) backward_in_memory(const RmsNormBackwardArgs args) {
  pdl_wait_and_trigger();
  using A = Accumulator<T>;
  A* const partial =
      args.partials == nullptr ? nullptr : static_cast<A*>(args.partials) + blockIdx.x * args.num_columns;
  for (std::int64_t row = blockIdx.x; row < args.num_rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(args.x) + row_offset(args.x_rows, row);
    const T* grad_out = static_cast<const T*>(args.grad_out) + row_offset(args.grad_out_rows, row);
    A squares = 0;
    A products = 0;
    for (std::int64_t i = threadIdx.x; i < args.num_columns; i += kBlockOfLongRow) {
      const A value = widen(x[i]);
      squares += value * value;
      products += widen(grad_out[i]) * weight_at<A>(args.weight, args.weight_dtype, i, args.zero_centered) * value;
    }
    const auto num_columns = static_cast<A>(args.num_columns);
    A sums[2] = {squares, products};
    block_sums<kBlockOfLongRow>(sums);
    const A inv_rms = rsqrt(sums[0] / num_columns + static_cast<A>(args.eps));
    const A mean_grad_dot_x = sums[1] / num_columns;
    const A x_coefficient = mean_grad_dot_x * inv_rms * inv_rms * inv_rms;
    for (std::int64_t i = threadIdx.x; i < args.num_columns; i += kBlockOfLongRow) {
      const A value = widen(x[i]);
      const A scaled = widen(grad_out[i]) * inv_rms;
      if (partial != nullptr) partial[i] = (row == blockIdx.x ? 0 : partial[i]) + scaled * value;
      if (args.grad_x == nullptr) continue;
      A grad = scaled * weight_at<A>(args.weight, args.weight_dtype, i, args.zero_centered) - value * x_coefficient;
      if (args.grad_sum != nullptr)
        grad += widen(static_cast<const T*>(args.grad_sum)[row_offset(args.grad_sum_rows, row) + i]);
      static_cast<T*>(args.grad_x)[row * args.num_columns + i] = narrow<T>(grad);
    }
  }
}

template <class T>
unsigned launch(const RmsNormBackwardArgs& args, CUstream_st* stream) {
  const auto start = [&](auto kernel, int rows_at_once, unsigned block) {
    const unsigned blocks = std::min(num_blocks(args.num_rows, rows_at_once), static_cast<unsigned>(kRmsNormPartials));
    launch_pdl(kernel, {blocks, block}, stream, args);
    return blocks;
  };
  if (args.num_columns <= 512 * kColumnsOfThread) return start(backward_in_registers<T, 512>, kRowsAtOnce<T>, 512);
  if constexpr (sizeof(T) < 8) {  // doubles would not fit into registers
    if (args.num_columns <= 1024 * kColumnsOfThread) return start(backward_in_registers<T, 1024>, kRowsAtOnce<T>, 1024);
  }
  return start(backward_in_memory<T>, 1, kBlockOfLongRow);
}

}  // namespace

unsigned launch_rms_norm_backward_of_any_row(const RmsNormBackwardArgs& args, CUstream_st* stream) {
  unsigned blocks = 0;
  with_element_type(args.dtype, [&]<class T>(Element<T>) { blocks = launch<T>(args, stream); });
  return blocks;
}

}  // namespace d9d::kernels::detail
