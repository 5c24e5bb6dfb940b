#include "d9d/kernels/device/tensor_map.cuh"
#include "d9d/kernels/grouped_mm/grouped_mm_kernel.h"
#include "d9d/kernels/grouped_mm/grouped_pipeline.cuh"

namespace d9d::kernels::detail {
namespace {

constexpr int kTileOut = 256;
constexpr int kInnerOfProduct = 16;

struct OuterTile {
  int group;
  int first_row;
  int num_rows;
  int first_in;  // of this block
  int first_out;
};

// Sums of rows: A is 64 columns of x, B 256 columns of y. T: of the result.
template <class T>
struct RowsOuterRows {
  const CUtensorMap& x_map;
  const CUtensorMap& y_map;
  const RowsOuterRowsArgs& args;

  __device__ __forceinline__ int num_out_tiles() const { return ceil_div(args.out_features, kTileOut); }

  __device__ __forceinline__ GroupTiles tiles_of(int g) const {
    return {.cost = args.offsets[g + 1] - args.offsets[g], .count = ceil_div(args.in, kTileFeatures) * num_out_tiles()};
  }

  __device__ __forceinline__ OuterTile tile_at(int g, int index) const {
    const int first_row = args.offsets[g];
    return {
        .group = g,
        .first_row = first_row,
        .num_rows = args.offsets[g + 1] - first_row,
        .first_in = index / num_out_tiles() * kTileFeatures + static_cast<int>(block_of_cluster()) * kTileFeatures / 2,
        .first_out = index % num_out_tiles() * kTileOut};
  }

  __device__ __forceinline__ int num_stages(const OuterTile& tile) const {
    return ceil_div(tile.num_rows, kInnerOfBlock);
  }
  __device__ __forceinline__ int bytes_of_stage(const OuterTile&) const { return 6 * kBoxBytes; }

  __device__ __forceinline__ void load(const OuterTile& tile, int i, unsigned char (*a)[kBoxBytes],
                                       unsigned char (*b)[kBoxBytes], Barrier& full) const {
    const int row = tile.first_row + i * kInnerOfBlock;
#pragma unroll
    for (int box = 0; box < 2; ++box) load_box(a[box], x_map, full, {tile.first_in + box * 64, row, 0});
    const int half = static_cast<int>(block_of_cluster()) * 2;
#pragma unroll
    for (int box = half; box < half + 2; ++box)
      load_box_for_both(b[box], y_map, full, {tile.first_out + box * 64, row, 0});
  }

  __device__ __forceinline__ void compute(const OuterTile& tile, Consumer& consumer) const {
    float sums[128];
    const int num_whole = tile.num_rows / kInnerOfBlock;
    if (num_whole > 0) {
      consumer.add_up<kTileOut, Order::kByOuter, Order::kByOuter>(sums, num_whole);
    } else {
#pragma unroll
      for (float& sum : sums) sum = 0;
    }
    if (tile.num_rows % kInnerOfBlock > 0) add_up_rest(tile.num_rows % kInnerOfBlock, consumer, sums);
    if (args.add) {
      if (tile.num_rows == 0) return;
      for_each_pair(
          tile, consumer, [&](T* out, float* pair) { add_pair(out, pair); }, sums);
    }
    if constexpr (sizeof(T) == sizeof(float)) {
      for_each_pair(
          tile, consumer,
          [&](T* out, float* pair) {
            *reinterpret_cast<float2*>(out) = {pair[0], pair[1]};
          },
          sums);
    } else {
      write_bf16(tile, consumer, sums);
    }
  }

  // The group's last rows: those of the next group that came with them must not count, not even as NaN times zero.
  __device__ __forceinline__ void add_up_rest(int num_rows, Consumer& consumer, float (&sums)[128]) const {
    GroupedShared& shared = consumer.shared;
    const int num_steps = ceil_div(num_rows, kInnerOfProduct);
    const int stage = consumer.at.stage;
    wait(shared.full[stage], consumer.at.phase);
    const int num_pieces = (num_steps * kInnerOfProduct - num_rows) * 8;  // of 16 bytes, a box
    for (int i = consumer.thread(); i < num_pieces; i += kWarpgroup) {
      const int at = num_rows * 128 + i * 16;
      *reinterpret_cast<uint4*>(shared.a[stage][consumer.warpgroup] + at) = {};
#pragma unroll
      for (int box = 0; box < 4; ++box) *reinterpret_cast<uint4*>(shared.b[stage][box] + at) = {};
    }
    if (num_pieces > 0) {
      publish_shared_writes();
      consumer.meet();
    }
    switch (num_steps) {
      case 1:
        add_up_steps<1>(consumer, sums);
        break;
      case 2:
        add_up_steps<2>(consumer, sums);
        break;
      case 3:
        add_up_steps<3>(consumer, sums);
        break;
      default:
        add_up_steps<4>(consumer, sums);
    }
    consumer.release(stage);
    consumer.at.advance();
  }

  template <int kSteps>
  __device__ __forceinline__ void add_up_steps(const Consumer& consumer, float (&sums)[128]) const {
    keep_sums(sums);
    begin_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      consumer.start_product<kTileOut, Order::kByOuter, Order::kByOuter>(sums, step, true);
    end_products();
    wait_for_products<0>();
    keep_sums(sums);
  }

  __device__ static __forceinline__ void add_pair(const T* out, float* pair) {
    if constexpr (sizeof(T) == sizeof(float)) {
      const float2 there = *reinterpret_cast<const float2*>(out);
      pair[0] += there.x;
      pair[1] += there.y;
    } else {
      const float2 there = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(out));
      pair[0] += there.x;
      pair[1] += there.y;
    }
  }

  [[nodiscard]] __device__ __forceinline__ T* out_at(const OuterTile& tile, int in, int out) const {
    return static_cast<T*>(args.out) + (static_cast<std::int64_t>(tile.group) * args.in + in) * args.out_features + out;
  }

  // Of the sums that this thread holds, side by side in the result.
  template <class Visit>
  __device__ __forceinline__ void for_each_pair(const OuterTile& tile, const Consumer& consumer, const Visit& visit,
                                                float (&sums)[128]) const {
    const int in = tile.first_in + consumer.warpgroup * 64 + consumer.warp() * 16 + consumer.lane() / 4;
    const int out = tile.first_out + consumer.lane() % 4 * 2;
    T* const first = out_at(tile, in, out);
#pragma unroll
    for (int j = 0; j < kTileOut / 8; ++j) {
      if (out + 8 * j >= args.out_features) continue;
      if (in < args.in) visit(first + 8 * j, sums + 4 * j);
      if (in + 8 < args.in) visit(first + 8 * j + 8 * static_cast<std::int64_t>(args.out_features), sums + 4 * j + 2);
    }
  }

  // 64 columns at a time through shared memory, so that a warp writes whole pieces of 128 bytes of four rows.
  __device__ __forceinline__ void write_bf16(const OuterTile& tile, Consumer& consumer, float (&sums)[128]) const {
    const int lane = consumer.lane();
    const int first_in = tile.first_in + consumer.warpgroup * 64 + consumer.warp() * 16 + lane / 8;
    const int first_out = tile.first_out + lane % 8 * 8;
    T* const out = out_at(tile, first_in, first_out);
#pragma unroll
    for (int first = 0; first < kTileOut; first += 64) {
      if (tile.first_out + first >= args.out_features) continue;
      unsigned char* const piece =
          consumer.shared.results[consumer.warpgroup][consumer.piece] + consumer.warp() * 16 * 128;
      consumer.piece ^= 1;
#pragma unroll
      for (int j = 0; j < 8; j += 2)
        store_matrices(piece + swizzled(lane % 16, j + lane / 16), sums + (first + 8 * j) / 2);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 16; i += 4) {
        if (first_in + i < args.in && first_out + first < args.out_features) {
          *reinterpret_cast<uint4*>(out + static_cast<std::int64_t>(i) * args.out_features + first) =
              *reinterpret_cast<const uint4*>(piece + swizzled(i + lane / 8, lane % 8));
        }
      }
    }
  }
};

template <class T>
__global__ void __cluster_dims__(2) __launch_bounds__(kThreads, 1)
    rows_outer_rows(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap y_map,
                    const __grid_constant__ RowsOuterRowsArgs args) {
  if (threadIdx.x == 0) {
    prefetch_map(x_map);
    prefetch_map(y_map);
  }
  run_grouped(RowsOuterRows<T>{x_map, y_map, args}, args.num_groups);
}

[[nodiscard]] CUtensorMap boxes_of_rows(const void* data, int num_columns, std::int64_t num_rows) {
  return tensor_map_bf16({.data = data,
                          .sizes = {static_cast<std::uint64_t>(num_columns), static_cast<std::uint64_t>(num_rows), 1},
                          .box = {64, kInnerOfBlock, 1}});
}

}  // namespace

void launch_rows_outer_rows(const RowsOuterRowsArgs& args, CUstream_st* stream) {
  const auto launch = [&](auto* kernel) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(GroupedShared));
    kernel<<<num_blocks_of_device(), kThreads, sizeof(GroupedShared), stream>>>(
        boxes_of_rows(args.x, args.in, args.num_rows), boxes_of_rows(args.y, args.out_features, args.num_rows), args);
  };
  if (args.out_is_float) {
    launch(rows_outer_rows<float>);
  } else {
    launch(rows_outer_rows<__nv_bfloat16>);
  }
  check_launch("grouped_mm");
}

}  // namespace d9d::kernels::detail
