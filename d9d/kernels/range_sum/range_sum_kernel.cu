// Formula: target[b, p, c] = sum over the ranges r that have position p of r[b, p - first_r, c].
// Legend:  b sequence, p position, c column.
// Mapping: a thread sums 8 columns of a position.
// Numerics: in fp32 in the order of the ranges, rounded once.
// Traffic: each range is read once, target is written once, but not where the only range is target itself.
#include "d9d/kernels/device/launch.cuh"
#include "d9d/kernels/device/vector.cuh"
#include "d9d/kernels/range_sum/range_sum_kernel.h"

namespace d9d::kernels::detail {
namespace {

constexpr int kBlock = 256;

template <class T>
__global__ void __launch_bounds__(kBlock) range_sum(const RangeSumArgs args) {
  pdl_wait_and_trigger();
  const auto columns = static_cast<std::uint32_t>(args.num_columns / kWidth<T>);
  const auto positions = static_cast<std::uint32_t>(args.target.num_positions);
  const std::uint32_t vec = blockIdx.x * kBlock + threadIdx.x;
  const std::uint32_t row = vec / columns, sequence = row / positions;
  if (sequence >= args.batch) return;
  const std::int64_t column = static_cast<std::int64_t>(vec - row * columns) * kWidth<T>;
  const std::int64_t position = static_cast<std::int64_t>(row - sequence * positions);
  const auto place_in = [&](const RangeSumArgs::Rows& rows) {
    return static_cast<std::int64_t>(sequence) * rows.batch_stride +
           (position - rows.first_position) * rows.position_stride + column;
  };
  float sum[kWidth<T>] = {};
  int count = 0;
  bool is_target = false;
#pragma unroll
  for (int i = 0; i < RangeSumArgs::kMaxRanges; ++i) {
    if (i >= args.num_ranges) break;
    const RangeSumArgs::Rows& rows = args.ranges[i];
    const std::int64_t index = position - rows.first_position;
    if (index < 0 || index >= rows.num_positions) continue;
    const auto values = load_vec<T>(rows.data, place_in(rows));
#pragma unroll
    for (int j = 0; j < kWidth<T>; ++j) sum[j] = count == 0 ? widen(values.value[j]) : sum[j] + widen(values.value[j]);
    ++count;
    is_target = rows.data == args.target.data;
  }
  if (count == 0 || (count == 1 && is_target)) return;
  Vec16<T> result;
#pragma unroll
  for (int j = 0; j < kWidth<T>; ++j) result.value[j] = narrow<T>(sum[j]);
  store_vec(result, args.target.data, place_in(args.target));
}

template <class T>
void launch(const RangeSumArgs& args, CUstream_st* stream) {
  const std::int64_t num_vecs = args.batch * args.target.num_positions * (args.num_columns / kWidth<T>);
  launch_pdl(range_sum<T>, {num_blocks(num_vecs, kBlock), kBlock}, stream, args);
}

}  // namespace

void d9d_launch_range_sum(const RangeSumArgs& args, CUstream_st* stream) {
  if (args.dtype == Dtype::kBFloat16) {
    launch<__nv_bfloat16>(args, stream);
  } else {
    launch<__half>(args, stream);
  }
  check_launch("range_sum");
}

}  // namespace d9d::kernels::detail
