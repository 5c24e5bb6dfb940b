#include "d9d/kernels/device/tensor_map.cuh"
#include "d9d/kernels/grouped_mm/grouped_mm_kernel.h"
#include "d9d/kernels/grouped_mm/grouped_pipeline.cuh"

namespace d9d::kernels::detail {
namespace {

constexpr int kRowBytes = kInnerOfBlock * 2;
constexpr int kPieceRows = 64;

struct RowsTile {
  int group;
  int first_row;
  int num_rows;
  int first_feature;  // of this block
};

// The tensor cores compute the transpose: A is 64 features of the weights, B the rows, of which a product takes any
// multiple of 8.
template <Major kWeightMajor>
struct RowsTimesWeights {
  const CUtensorMap (&rows_maps)[2];
  const CUtensorMap (&weights_maps)[2];
  const CUtensorMap& out_map;
  const RowsTimesWeightsArgs& args;

  __device__ __forceinline__ int num_feature_tiles() const { return ceil_div(args.features, kTileFeatures); }

  __device__ __forceinline__ GroupTiles tiles_of(int rows) const {
    return {.cost = rows_of_tile(rows), .count = num_row_tiles(rows) * num_feature_tiles()};
  }

  __device__ __forceinline__ RowsTile tile_at(const TileOrder& order, int g, int index) const {
    const int tiles = num_feature_tiles();
    const int first_row = order.offset[g];
    const RowRange rows = row_tile(order.offset[g + 1] - first_row, index / tiles);
    return {.group = g,
            .first_row = first_row + rows.first,
            .num_rows = rows.count,
            .first_feature = index % tiles * kTileFeatures + static_cast<int>(cta_rank()) * kTileFeatures / 2};
  }

  __device__ __forceinline__ int num_stages(const RowsTile&) const {
    return args.num_terms * ceil_div(args.inner, kInnerOfBlock);
  }
  __device__ __forceinline__ int num_row_boxes(const RowsTile& tile) const {
    return ceil_div(tile.num_rows, kTileRowStep);
  }
  __device__ __forceinline__ int bytes_of_stage(const RowsTile& tile, int /*stage*/) const {
    return 2 * kBoxBytes + num_row_boxes(tile) * kTileRowStep * kRowBytes;
  }

  __device__ __forceinline__ void load(const RowsTile& tile, int i, unsigned char (*a)[kBoxBytes],
                                       unsigned char (*b)[kBoxBytes], Mbarrier& full) const {
    const int stages_of_term = ceil_div(args.inner, kInnerOfBlock);
    const int term = i < stages_of_term ? 0 : 1;
    const CUtensorMap& rows_map = rows_maps[term];
    const CUtensorMap& weights_map = weights_maps[term];
    const int inner = (i - term * stages_of_term) * kInnerOfBlock;
    if constexpr (kWeightMajor == Major::kMN) {
      tma_load(a[0], weights_map, full, {tile.first_feature, inner, tile.group});
      tma_load(a[1], weights_map, full, {tile.first_feature + 64, inner, tile.group});
    } else {
      tma_load(a[0], weights_map, full, {inner, tile.first_feature, tile.group});
    }
    const int num_boxes = num_row_boxes(tile);
    for (int box = static_cast<int>(cta_rank()); box < num_boxes; box += 2) {
      tma_load_multicast(b[0] + box * kTileRowStep * kRowBytes, rows_map, full,
                         {inner, tile.first_row + box * kTileRowStep, 0});
    }
  }

  __device__ __forceinline__ void compute(const RowsTile& tile, Consumer& consumer) const {
    float sums[128];
    switch (num_row_boxes(tile)) {
      case 1:
        add_up<32>(tile, consumer, sums);
        break;
      case 2:
        add_up<64>(tile, consumer, sums);
        break;
      case 3:
        add_up<96>(tile, consumer, sums);
        break;
      case 4:
        add_up<128>(tile, consumer, sums);
        break;
      case 5:
        add_up<160>(tile, consumer, sums);
        break;
      case 6:
        add_up<192>(tile, consumer, sums);
        break;
      case 7:
        add_up<224>(tile, consumer, sums);
        break;
      default:
        add_up<256>(tile, consumer, sums);
    }
    write(tile, consumer, sums);
  }

  template <int kRows>
  __device__ __forceinline__ void add_up(const RowsTile& tile, Consumer& consumer, float (&sums)[128]) const {
    consumer.add_up<kRows, kWeightMajor, Major::kK>(sums, num_stages(tile));
  }

  // 64 rows at a time: as boxes where all of them are the group's.
  __device__ __forceinline__ void write(const RowsTile& tile, Consumer& consumer, const float (&sums)[128]) const {
    const int lane = consumer.lane();
    const int first_feature = tile.first_feature + consumer.warpgroup * 64;
#pragma unroll
    for (int first = 0; first < kMaxTileRows; first += kPieceRows) {
      if (first >= tile.num_rows) continue;
      unsigned char* const piece = consumer.begin_piece();
#pragma unroll
      for (int row = 0; row < kPieceRows; row += 16) {
        stmatrix_x4_trans(piece + swizzle_128b(row + lane / 16 * 8 + lane % 8, consumer.warp() * 2 + lane / 8 % 2),
                          sums + (first + row) / 2);
      }
      const int num_rows = tile.num_rows - first;
      consumer.end_piece([&] {
        if (num_rows >= kPieceRows) tma_store(out_map, piece, {first_feature, tile.first_row + first, 0});
      });
      if (num_rows < kPieceRows) write_rows(tile.first_row + first, num_rows, first_feature, piece, consumer.thread());
    }
  }

  __device__ __forceinline__ void write_rows(int first_row, int num_rows, int first_feature, const unsigned char* piece,
                                             int thread) const {
    first_feature += thread % 8 * 8;
    if (first_feature >= args.features) return;
    auto* const out = static_cast<__nv_bfloat16*>(args.out) + first_feature;
    for (int row = thread / 8; row < num_rows; row += kWarpgroup / 8) {
      *reinterpret_cast<uint4*>(out + static_cast<std::int64_t>(first_row + row) * args.features) =
          *reinterpret_cast<const uint4*>(piece + swizzle_128b(row, thread % 8));
    }
  }
};

struct Maps {
  CUtensorMap rows[2];  // of the terms
  CUtensorMap weights[2];
  CUtensorMap out;
};

template <Major kWeightMajor>
__global__ void __cluster_dims__(2) __launch_bounds__(kThreads, 1)
    rows_times_weights(const __grid_constant__ Maps maps, const __grid_constant__ RowsTimesWeightsArgs args) {
  if (threadIdx.x == 0) {
    for (int term = 0; term < args.num_terms; ++term) {
      prefetch_tensor_map(maps.rows[term]);
      prefetch_tensor_map(maps.weights[term]);
    }
    prefetch_tensor_map(maps.out);
  }
  run_grouped(RowsTimesWeights<kWeightMajor>{maps.rows, maps.weights, maps.out, args}, args.offsets, args.num_groups,
              args.num_drawn);
}

}  // namespace

void launch_rows_times_weights(const RowsTimesWeightsArgs& args, CUstream_st* stream) {
  const auto inner = static_cast<std::uint64_t>(args.inner), features = static_cast<std::uint64_t>(args.features),
             num_rows = static_cast<std::uint64_t>(args.num_rows), groups = static_cast<std::uint64_t>(args.num_groups);
  auto* const kernel = args.weights_are_transposed ? rows_times_weights<Major::kK> : rows_times_weights<Major::kMN>;
  prepare_grouped(kernel);  // gives the thread a context, which maps want
  Maps maps;
  for (int term = 0; term < args.num_terms; ++term) {
    const auto [rows, weights] = args.terms[term];
    maps.rows[term] =
        tensor_map({.data = rows, .sizes = {inner, num_rows, 1}, .box = {kInnerOfBlock, kTileRowStep, 1}});
    maps.weights[term] =
        args.weights_are_transposed
            ? tensor_map(
                  {.data = weights, .sizes = {inner, features, groups}, .box = {kInnerOfBlock, kTileFeatures / 2, 1}})
            : tensor_map({.data = weights, .sizes = {features, inner, groups}, .box = {64, kInnerOfBlock, 1}});
  }
  maps.out = tensor_map({.data = args.out, .sizes = {features, num_rows, 1}, .box = {64, kPieceRows, 1}});
  cudaMemsetAsync(args.num_drawn, 0, sizeof(*args.num_drawn), stream);
  kernel<<<num_blocks_of_device(), kThreads, sizeof(GroupedShared), stream>>>(maps, args);
  check_launch("grouped_mm");
}

}  // namespace d9d::kernels::detail
