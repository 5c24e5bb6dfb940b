// Formula: out = x * rsqrt(mean(x^2) + eps) * weight; with a residual x = round(x + residual), which is also a result.
// Legend:  a row of N columns; weight + 1 in place of weight when zero-centred.
// Mapping: forward_in_registers: a group of threads (rms_norm_rows.cuh) holds whole rows in registers.
//          forward_of_any_row: one block per row of any length and alignment.
// Numerics: fp32 (fp64 for fp64 rows), rounded once; the order of the sum depends only on sizes and alignment.
// Traffic: forward_in_registers reads x and residual once; forward_of_any_row reads the row that it normalises twice.
//          Results are written once.
#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/rms_norm/rms_norm_kernel.h"
#include "d9d/kernels/rms_norm/rms_norm_rows.cuh"

namespace d9d::kernels::detail {
namespace {

template <class Group>
constexpr int kBlockOf = Group::kThreads > 256 ? Group::kThreads : 256;

// The rows and columns of a thread. kIsFull: a row has exactly as many vectors as the group holds.
template <class T, class Group, bool kIsFull>
struct Tile {
  using Vectors = Vec16<T>[Group::kRows][Group::kVectors];

  const RmsNormForwardArgs& args;
  int thread;  // of its group
  std::int64_t first_row;
  int num_columns;

  __device__ __forceinline__ std::int64_t row(int i) const {
    return first_row + i * (kBlockOf<Group> / Group::kThreads);
  }
  __device__ __forceinline__ int column(int v) const { return column_of<Group, T>(thread, v); }
  __device__ __forceinline__ bool is_mine(int v) const { return kIsFull || column(v) < num_columns; }

  // Threads without columns and groups without rows load the last ones again, so that no load waits for a condition.
  __device__ __forceinline__ int readable_column(int v) const {
    return kIsFull ? column(v) : min(column(v), num_columns - kWidth<T>);
  }
  __device__ __forceinline__ void load(const void* data, const StridedRows& rows, Vectors& vectors) const {
#pragma unroll
    for (int i = 0; i < Group::kRows; ++i) {
      const std::int64_t begin = row_offset(rows, min(row(i), args.num_rows - 1));
#pragma unroll
      for (int v = 0; v < Group::kVectors; ++v) vectors[i][v] = load_vec<T>(data, begin + readable_column(v));
    }
  }
};

// x += residual, rounded.
template <class T>
__device__ __forceinline__ void add_residual(const Vec16<T>& residual, Vec16<T>& x) {
#pragma unroll
  for (int j = 0; j < kWidth<T>; ++j) x.value[j] = narrow<T>(widen(x.value[j]) + widen(residual.value[j]));
}

template <class T>
__device__ __forceinline__ void add_squares(const Vec16<T>& x, float& sum) {
#pragma unroll
  for (int j = 0; j < kWidth<T>; ++j) sum += widen(x.value[j]) * widen(x.value[j]);
}

// Widens elements again at later uses, instead of keeping them in twice the registers.
template <class Weight, class T, int kRows, int kVectors>
__device__ __forceinline__ void keep_all_packed(Weight (&weights)[kVectors], Vec16<T> (&x)[kRows][kVectors]) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    keep_packed(weights[v]);
#pragma unroll
    for (int i = 0; i < kRows; ++i) keep_packed(x[i][v]);
  }
}

// A group of threads processes kRows rows, which it holds in registers.
template <class T, class Weight, class Group, bool kAdds, bool kIsFull>
__global__ void __launch_bounds__(kBlockOf<Group>) forward_in_registers(const RmsNormForwardArgs args) {
  pdl_wait_and_trigger();
  constexpr int kGroups = kBlockOf<Group> / Group::kThreads;
  constexpr int kRows = Group::kRows;
  constexpr int kVectors = Group::kVectors;
  const Tile<T, Group, kIsFull> tile{.args = args,
                                     .thread = static_cast<int>(threadIdx.x) % Group::kThreads,
                                     .first_row = static_cast<std::int64_t>(blockIdx.x) * kGroups * kRows +
                                                  static_cast<int>(threadIdx.x) / Group::kThreads,
                                     .num_columns = static_cast<int>(args.num_columns)};

  Vec16<T> x[kRows][kVectors];
  tile.load(args.x, args.x_rows, x);
  if constexpr (kAdds) {
    Vec16<T> residual[kRows][kVectors];
    tile.load(args.residual, args.residual_rows, residual);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        add_residual(residual[i][v], x[i][v]);
        if (tile.row(i) < args.num_rows && tile.is_mine(v))
          store_vec(x[i][v], args.sum, tile.row(i) * args.num_columns + tile.column(v));
      }
    }
  }
  Vec<Weight, kWidth<T>> loaded_weight[kVectors];  // in flight while the squares are summed
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    loaded_weight[v] = load_vec<Weight, kWidth<T>>(args.weight, tile.readable_column(v));

  float squares[kRows] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!tile.is_mine(v)) break;
      add_squares(x[i][v], squares[i]);
    }
  thread_group_sums<Group::kThreads, kBlockOf<Group>>(squares, 0);
  keep_all_packed(loaded_weight, x);
  const float inv_n = 1.0F / static_cast<float>(tile.num_columns);
  const auto eps = static_cast<float>(args.eps);
  float inv_rms[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) inv_rms[i] = rsqrtf(squares[i] * inv_n + eps);

#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!tile.is_mine(v)) break;
    float weight[kWidth<T>];
#pragma unroll
    for (int j = 0; j < kWidth<T>; ++j)
      weight[j] = widen(loaded_weight[v].value[j]) + (args.zero_centered ? 1.0F : 0.0F);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (tile.row(i) >= args.num_rows) continue;
      Vec16<T> out;
#pragma unroll
      for (int j = 0; j < kWidth<T>; ++j) out.value[j] = narrow<T>(widen(x[i][v].value[j]) * inv_rms[i] * weight[j]);
      store_vec(out, args.out, tile.row(i) * args.num_columns + tile.column(v));
    }
  }
}

constexpr int kBlock = 512;

// One block per row, of any length and alignment. It reads the row twice.
template <class T>
__global__ void __launch_bounds__(kBlock) forward_of_any_row(const RmsNormForwardArgs args) {
  pdl_wait_and_trigger();
  using A = Accumulator<T>;
  const std::int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(args.x) + row_offset(args.x_rows, row);
  if (args.residual != nullptr) {
    const T* residual = static_cast<const T*>(args.residual) + row_offset(args.residual_rows, row);
    T* sum = static_cast<T*>(args.sum) + row * args.num_columns;
    for (std::int64_t i = threadIdx.x; i < args.num_columns; i += kBlock)
      sum[i] = narrow<T>(widen(x[i]) + widen(residual[i]));
    x = sum;  // needs no barrier: each thread reads only what it wrote itself
  }
  A squares[1] = {};
  for (std::int64_t i = threadIdx.x; i < args.num_columns; i += kBlock) squares[0] += widen(x[i]) * widen(x[i]);
  block_sums<kBlock>(squares);
  const A inv_rms = rsqrt(squares[0] / static_cast<A>(args.num_columns) + static_cast<A>(args.eps));
  T* out = static_cast<T*>(args.out) + row * args.num_columns;
  for (std::int64_t i = threadIdx.x; i < args.num_columns; i += kBlock)
    out[i] = narrow<T>(widen(x[i]) * inv_rms * weight_at<A>(args.weight, args.weight_dtype, i, args.zero_centered));
}

bool launch_in_registers(const RmsNormForwardArgs& args, CUstream_st* stream) {
  bool is_launched = false;
  with_common_types(args.dtype, args.weight_dtype, [&]<class T, class Weight>() {
    const bool fits =
        is_aligned(args.x, args.x_rows, args.num_columns, sizeof(T)) &&
        (args.residual == nullptr || is_aligned(args.residual, args.residual_rows, args.num_columns, sizeof(T))) &&
        is_aligned(args.weight);
    if (!fits) return;
    is_launched = with_row_group(args.num_columns / kWidth<T>, [&]<class Group>(Group) {
      constexpr int kRowsOfBlock = kBlockOf<Group> / Group::kThreads * Group::kRows;
      const auto launch = [&](auto kernel) {
        launch_pdl(kernel, {num_blocks(args.num_rows, kRowsOfBlock), kBlockOf<Group>}, stream, args);
      };
      const auto launch_for = [&]<bool kAdds>(std::bool_constant<kAdds>) {
        args.num_columns == Group::kThreads* Group::kVectors* kWidth<T>
            ? launch(forward_in_registers<T, Weight, Group, kAdds, true>)
            : launch(forward_in_registers<T, Weight, Group, kAdds, false>);
      };
      args.residual == nullptr ? launch_for(std::false_type()) : launch_for(std::true_type());
    });
  });
  return is_launched;
}

}  // namespace

void d9d_launch_rms_norm_forward(const RmsNormForwardArgs& args, CUstream_st* stream) {
  if (!launch_in_registers(args, stream)) {
    with_element_type(args.dtype, [&]<class T>(Element<T>) {
      launch_pdl(forward_of_any_row<T>, {num_blocks(args.num_rows, 1), kBlock}, stream, args);
    });
  }
  check_launch("rms_norm");
}

}  // namespace d9d::kernels::detail
