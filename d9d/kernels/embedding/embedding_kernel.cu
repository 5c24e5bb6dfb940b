// Formula: sums[v] += sum of rows[order[i]] over all i with ids[i] = v.
// Legend:  ids ascending, so that those of one v are a run; a chunk is 16 ids beside each other.
// Mapping: a block sums a chunk, a thread 8 columns of it (one if rows are not aligned). Runs that end in their chunk
//          go to their row of sums; the parts of longer ones go to partials, which a block for each such run then sums.
// Numerics: fp32, in the order of i; added to sums with one rounding.
// Traffic: each row is read once, a row of sums is read and written once; a run that is longer than a chunk writes and
//          reads a part for each.
#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/embedding/embedding_kernel.h"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 128;

template <int W>
struct Sum {
  float value[W] = {};

  template <class T>
  __device__ __forceinline__ void add(const void* data, std::int64_t element) {
    const auto more = load_vec<T, W>(data, element);
#pragma unroll
    for (int j = 0; j < W; ++j) value[j] += widen(more.value[j]);
  }
  template <class T>
  __device__ __forceinline__ void add_to(void* data, std::int64_t element) const {
    auto vec = load_vec<T, W>(data, element);
#pragma unroll
    for (int j = 0; j < W; ++j) vec.value[j] = narrow<T>(widen(vec.value[j]) + value[j]);
    store_vec(vec, data, element);
  }
  __device__ __forceinline__ void store(float* data) const {
#pragma unroll
    for (int j = 0; j < W; ++j) data[j] = value[j];
  }
};

// What a block of one of the kernels works on.
struct Chunk {
  std::int64_t index;
  std::int64_t first;  // id
  std::int64_t last;   // id
};
__device__ __forceinline__ Chunk chunk_at(const AddSortedRowsArgs& args, std::int64_t index) {
  const std::int64_t first = index * kRowsOfChunk;
  return {index, first, min(first + kRowsOfChunk, args.num_rows) - 1};
}
__device__ __forceinline__ bool continues_before(const AddSortedRowsArgs& args, const Chunk& chunk) {
  return chunk.first > 0 && args.ids[chunk.first - 1] == args.ids[chunk.first];
}
__device__ __forceinline__ bool continues_after(const AddSortedRowsArgs& args, const Chunk& chunk) {
  return chunk.last + 1 < args.num_rows && args.ids[chunk.last + 1] == args.ids[chunk.last];
}
// The partial sum of a run that began in an earlier chunk (which = 0), or begins here and continues in the next one
// (1).
__device__ __forceinline__ float* partial_at(const AddSortedRowsArgs& args, std::int64_t chunk, int which,
                                             std::int64_t column) {
  return args.partials + (chunk * 2 + which) * args.num_columns + column;
}

template <class Sums, class Rows, int W>
__global__ void __launch_bounds__(kBlock) add_chunks(const AddSortedRowsArgs args, unsigned blocks_of_row) {
  pdl_wait_and_trigger();
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x % blocks_of_row) * kBlock + threadIdx.x) * W;
  if (column >= args.num_columns) return;
  const Chunk chunk = chunk_at(args, blockIdx.x / blocks_of_row);
  bool began_before = continues_before(args, chunk);
  const bool goes_on = continues_after(args, chunk);
  Sum<W> sum;
  for (std::int64_t i = chunk.first; i <= chunk.last; ++i) {
    sum.template add<Rows>(args.rows, args.order[i] * args.num_columns + column);
    const int id = args.ids[i];
    if (i < chunk.last && args.ids[i + 1] == id) continue;
    if (began_before) {
      sum.store(partial_at(args, chunk.index, 0, column));
    } else if (i == chunk.last && goes_on) {
      sum.store(partial_at(args, chunk.index, 1, column));
    } else {
      sum.template add_to<Sums>(args.sums, id * args.num_columns + column);
    }
    began_before = false;
    sum = {};
  }
}

// A block for each chunk, which has work if a run begins in it that goes on in the next one.
template <class Sums, int W>
__global__ void __launch_bounds__(kBlock) add_long_runs(const AddSortedRowsArgs args, unsigned blocks_of_row) {
  pdl_wait_and_trigger();
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x % blocks_of_row) * kBlock + threadIdx.x) * W;
  if (column >= args.num_columns) return;
  Chunk chunk = chunk_at(args, blockIdx.x / blocks_of_row);
  const int id = args.ids[chunk.last];
  if (!continues_after(args, chunk) || (args.ids[chunk.first] == id && continues_before(args, chunk))) return;
  Sum<W> sum;
  sum.template add<float>(partial_at(args, chunk.index, 1, column), 0);
  do {
    chunk = chunk_at(args, chunk.index + 1);
    sum.template add<float>(partial_at(args, chunk.index, 0, column), 0);
  } while (args.ids[chunk.last] == id && continues_after(args, chunk));
  sum.template add_to<Sums>(args.sums, id * args.num_columns + column);
}

template <class Sums, class Rows, int W>
void start(const AddSortedRowsArgs& args, CUstream_st* stream) {
  const unsigned blocks_of_row = num_blocks(args.num_columns, kBlock * W);
  const Grid grid{num_blocks(args.num_rows, kRowsOfChunk) * blocks_of_row, kBlock};
  launch_pdl(add_chunks<Sums, Rows, W>, grid, stream, args, blocks_of_row);
  launch_pdl(add_long_runs<Sums, W>, grid, stream, args, blocks_of_row);
}

template <class Sums, class Rows>
void start_aligned(const AddSortedRowsArgs& args, CUstream_st* stream) {
  constexpr int kColumns = 8;
  const bool is_whole = is_aligned(args.sums) && is_aligned(args.rows) && args.num_columns % kColumns == 0;
  is_whole ? start<Sums, Rows, kColumns>(args, stream) : start<Sums, Rows, 1>(args, stream);
}

}  // namespace

void d9d_launch_add_sorted_rows(const AddSortedRowsArgs& args, CUstream_st* stream) {
  if (args.num_rows == 0 || args.num_columns == 0) return;
  const bool are_sums_float = args.sums_dtype == Dtype::kFloat32, are_rows_float = args.rows_dtype == Dtype::kFloat32;
  if (are_sums_float) {
    are_rows_float ? start_aligned<float, float>(args, stream) : start_aligned<float, __nv_bfloat16>(args, stream);
  } else {
    are_rows_float ? start_aligned<__nv_bfloat16, float>(args, stream)
                   : start_aligned<__nv_bfloat16, __nv_bfloat16>(args, stream);
  }
  check_launch("embedding_rows");
}

}  // namespace d9d::kernels::detail
