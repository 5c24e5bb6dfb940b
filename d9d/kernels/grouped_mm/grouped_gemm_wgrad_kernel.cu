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
  static constexpr bool kIsFloat = sizeof(T) == sizeof(float);

  const CUtensorMap& x_map;
  const CUtensorMap& y_map;
  const CUtensorMap& out_map;
  const RowsOuterRowsArgs& args;

  __device__ __forceinline__ int num_out_tiles() const { return ceil_div(args.out_features, kTileOut); }

  __device__ __forceinline__ GroupTiles tiles_of(int rows) const {
    return {.cost = rows, .count = ceil_div(args.in, kTileFeatures) * num_out_tiles()};
  }

  __device__ __forceinline__ OuterTile tile_at(const TileOrder& order, int g, int index) const {
    const int first_row = order.offset[g];
    return {.group = g,
            .first_row = first_row,
            .num_rows = order.offset[g + 1] - first_row,
            .first_in = index / num_out_tiles() * kTileFeatures + static_cast<int>(cta_rank()) * kTileFeatures / 2,
            .first_out = index % num_out_tiles() * kTileOut};
  }

  __device__ __forceinline__ int num_stages(const OuterTile& tile) const {
    return ceil_div(tile.num_rows, kInnerOfBlock);
  }
  __device__ __forceinline__ int bytes_of_stage(const OuterTile&, int /*stage*/) const { return 6 * kBoxBytes; }

  __device__ __forceinline__ void load(const OuterTile& tile, int i, unsigned char (*a)[kBoxBytes],
                                       unsigned char (*b)[kBoxBytes], Mbarrier& full) const {
    const int row = tile.first_row + i * kInnerOfBlock;
#pragma unroll
    for (int box = 0; box < 2; ++box) tma_load(a[box], x_map, full, {tile.first_in + box * 64, row, 0});
    const int half = static_cast<int>(cta_rank()) * 2;
#pragma unroll
    for (int box = half; box < half + 2; ++box)
      tma_load_multicast(b[box], y_map, full, {tile.first_out + box * 64, row, 0});
  }

  __device__ __forceinline__ void compute(const OuterTile& tile, Consumer& consumer) const {
    float sums[128];
    const int num_whole = tile.num_rows / kInnerOfBlock;
    if (num_whole > 0) {
      consumer.add_up<kTileOut, Major::kMN, Major::kMN>(sums, num_whole);
    } else {
#pragma unroll
      for (float& sum : sums) sum = 0;
    }
    if (tile.num_rows % kInnerOfBlock > 0) add_up_rest(tile.num_rows % kInnerOfBlock, consumer, sums);
    if (args.add && tile.num_rows == 0) return;
    if constexpr (kIsFloat) {
      write_float(tile, consumer, sums);
    } else {
      if (args.add) add_to_sums(tile, consumer, sums);
      write_bf16(tile, consumer, sums);
    }
  }

  // The group's last rows: those of the next group that came with them must not count, not even as NaN times zero.
  __device__ __forceinline__ void add_up_rest(int num_rows, Consumer& consumer, float (&sums)[128]) const {
    GroupedShared& shared = consumer.shared;
    const int num_steps = ceil_div(num_rows, kInnerOfProduct);
    const int stage = consumer.at.stage;
    mbarrier_wait_parity(shared.full[stage], consumer.at.phase);
    const int num_pieces = (num_steps * kInnerOfProduct - num_rows) * 8;  // of 16 bytes, a box
    for (int i = consumer.thread(); i < num_pieces; i += kWarpgroup) {
      const int at = num_rows * 128 + i * 16;
      *reinterpret_cast<uint4*>(shared.a[stage][consumer.warpgroup] + at) = {};
#pragma unroll
      for (int box = 0; box < 4; ++box) *reinterpret_cast<uint4*>(shared.b[stage][box] + at) = {};
    }
    if (num_pieces > 0) {
      fence_proxy_async();
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
    fence_accumulators(sums);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      consumer.start_product<kTileOut, Major::kMN, Major::kMN>(sums, step, true);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    fence_accumulators(sums);
  }

  // What is in the result already. Slow: adding to bf16 is not what training does.
  __device__ __forceinline__ void add_to_sums(const OuterTile& tile, const Consumer& consumer,
                                              float (&sums)[128]) const {
    const int in = tile.first_in + consumer.warpgroup * 64 + consumer.warp() * 16 + consumer.lane() / 4;
    const int out = tile.first_out + consumer.lane() % 4 * 2;
    const auto* const first = static_cast<const __nv_bfloat16*>(args.out) +
                              (static_cast<std::int64_t>(tile.group) * args.in + in) * args.out_features + out;
#pragma unroll
    for (int pair = 0; pair < 64; ++pair) {
      const int j = pair / 2, below = pair % 2 * 8;
      if (in + below >= args.in || out + 8 * j >= args.out_features) continue;
      const float2 there = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(
          first + static_cast<std::int64_t>(below) * args.out_features + 8 * j));
      sums[2 * pair] += there.x;
      sums[2 * pair + 1] += there.y;
    }
  }

  // Columns that go as one box.
  static constexpr int kPieceColumns = 128 / sizeof(T);

  __device__ __forceinline__ void end_piece(const OuterTile& tile, const Consumer& consumer, unsigned char* piece,
                                            int column) const {
    const TmaCoordinates at = {tile.first_out + column, tile.first_in + consumer.warpgroup * 64, tile.group};
    consumer.end_piece([&] {
      if (kIsFloat && args.add) {
        tma_reduce_add(out_map, piece, at);
      } else {
        tma_store(out_map, piece, at);
      }
    });
  }

  __device__ __forceinline__ void write_bf16(const OuterTile& tile, Consumer& consumer, float (&sums)[128]) const {
    const int lane = consumer.lane();
#pragma unroll
    for (int column = 0; column < kTileOut; column += kPieceColumns) {
      if (tile.first_out + column >= args.out_features) continue;
      unsigned char* const piece = consumer.begin_piece();
#pragma unroll
      for (int j = 0; j < 8; j += 2)
        stmatrix_x4(piece + swizzle_128b(consumer.warp() * 16 + lane % 16, j + lane / 16), sums + (column + 8 * j) / 2);
      end_piece(tile, consumer, piece, column);
    }
  }

  __device__ __forceinline__ void write_float(const OuterTile& tile, Consumer& consumer, float (&sums)[128]) const {
    const int lane = consumer.lane();
    const int row = consumer.warp() * 16 + lane / 4;
#pragma unroll
    for (int column = 0; column < kTileOut; column += kPieceColumns) {
      if (tile.first_out + column >= args.out_features) continue;
      unsigned char* const piece = consumer.begin_piece();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const four = sums + column / 2 + 4 * j;
        const int at = lane % 2 * 8, chunk = 2 * j + lane % 4 / 2;
        *reinterpret_cast<float2*>(piece + swizzle_128b(row, chunk) + at) = {four[0], four[1]};
        *reinterpret_cast<float2*>(piece + swizzle_128b(row + 8, chunk) + at) = {four[2], four[3]};
      }
      end_piece(tile, consumer, piece, column);
    }
  }
};

template <class T>
__global__ void __cluster_dims__(2) __launch_bounds__(kThreads, 1)
    rows_outer_rows(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap y_map,
                    const __grid_constant__ CUtensorMap out_map, const __grid_constant__ RowsOuterRowsArgs args) {
  if (threadIdx.x == 0) {
    prefetch_tensor_map(x_map);
    prefetch_tensor_map(y_map);
    prefetch_tensor_map(out_map);
  }
  run_grouped(RowsOuterRows<T>{x_map, y_map, out_map, args}, args.offsets, args.num_groups, args.num_drawn);
}

}  // namespace

void launch_rows_outer_rows(const RowsOuterRowsArgs& args, CUstream_st* stream) {
  const auto in = static_cast<std::uint64_t>(args.in), out = static_cast<std::uint64_t>(args.out_features),
             num_rows = static_cast<std::uint64_t>(args.num_rows), groups = static_cast<std::uint64_t>(args.num_groups);
  const auto launch = [&](auto* kernel) {
    prepare_grouped(kernel);
    cudaMemsetAsync(args.num_drawn, 0, sizeof(*args.num_drawn), stream);
    kernel<<<num_blocks_of_device(), kThreads, sizeof(GroupedShared), stream>>>(
        tensor_map({.data = args.x, .sizes = {in, num_rows, 1}, .box = {64, kInnerOfBlock, 1}}),
        tensor_map({.data = args.y, .sizes = {out, num_rows, 1}, .box = {64, kInnerOfBlock, 1}}),
        tensor_map({.data = args.out,
                    .sizes = {out, in, groups},
                    .box = {args.out_is_float ? 32U : 64U, 64, 1},
                    .is_float = args.out_is_float}),
        args);
  };
  if (args.out_is_float) {
    launch(rows_outer_rows<float>);
  } else {
    launch(rows_outer_rows<__nv_bfloat16>);
  }
  check_launch("grouped_mm");
}

}  // namespace d9d::kernels::detail
