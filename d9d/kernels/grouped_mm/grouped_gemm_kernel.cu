// Formula: out[n, f] = sum over terms t and over i of rows_t[n, i] * weights_t[g, i, f], for the rows n of group g.
// Legend:  N rows in G groups, i = inner, f = features; one or two terms; weights [G, inner, features] or transposed.
// Mapping: persistent GEMM, M-grouped: a cluster of two blocks computes 256 features of up to 256 rows of one group.
//          The tensor cores compute the transpose: weights are A (M = features), rows are B (N = rows, any multiple of
//          8).
// Numerics: bf16 in, fp32 accumulators over all terms, rounded once. The result is bitwise reproducible.
// Traffic: rows are read once for each 256 features and weights once for each 256 rows of a group, mostly from the L2
//          cache; the result is written once.
#include "d9d/kernels/device/persistent_gemm.cuh"
#include "d9d/kernels/device/tensor_map.cuh"
#include "d9d/kernels/grouped_mm/grouped_gemm_kernel.h"

namespace d9d::kernels::detail {
namespace {

using namespace persistent_gemm;

constexpr int kRowBytes = kBlockK * 2;
constexpr int kEpilogueRows = 64;

struct GemmTile {
  int group;
  int first_row;
  int num_rows;
  int first_feature;  // of this block
};

// A problem of run_persistent_gemm().
template <Major kWeightMajor>
struct GroupedGemm {
  const CUtensorMap (&rows_maps)[2];
  const CUtensorMap (&weights_maps)[2];
  const CUtensorMap& out_map;
  const GroupedGemmArgs& args;

  __device__ __forceinline__ int num_feature_tiles() const { return ceil_div(args.features, kClusterM); }

  __device__ __forceinline__ GroupTiles tiles_of(int rows) const {
    return {.cost = rows_of_tile(rows), .count = num_row_tiles(rows) * num_feature_tiles()};
  }

  __device__ __forceinline__ GemmTile tile_at(const TileOrder& order, int g, int index) const {
    const int tiles = num_feature_tiles();
    const int first_row = order.offset[g];
    const RowRange rows = row_tile(order.offset[g + 1] - first_row, index / tiles);
    return {.group = g,
            .first_row = first_row + rows.first,
            .num_rows = rows.count,
            .first_feature = index % tiles * kClusterM + static_cast<int>(cta_rank()) * kBlockM};
  }

  __device__ __forceinline__ int num_stages(const GemmTile&) const {
    return args.num_terms * ceil_div(args.inner, kBlockK);
  }
  __device__ __forceinline__ int num_row_boxes(const GemmTile& tile) const { return ceil_div(tile.num_rows, kStepN); }
  __device__ __forceinline__ int bytes_of_stage(const GemmTile& tile, int /*stage*/) const {
    return 2 * kBoxBytes + num_row_boxes(tile) * kStepN * kRowBytes;
  }

  __device__ __forceinline__ void load(const GemmTile& tile, int i, unsigned char (*a)[kBoxBytes],
                                       unsigned char (*b)[kBoxBytes], Mbarrier& full) const {
    const int stages_of_term = ceil_div(args.inner, kBlockK);
    const int term = i < stages_of_term ? 0 : 1;
    const CUtensorMap& rows_map = rows_maps[term];
    const CUtensorMap& weights_map = weights_maps[term];
    const int inner = (i - term * stages_of_term) * kBlockK;
    if constexpr (kWeightMajor == Major::kMN) {
      tma_load(a[0], weights_map, full, {tile.first_feature, inner, tile.group});
      tma_load(a[1], weights_map, full, {tile.first_feature + 64, inner, tile.group});
    } else {
      tma_load(a[0], weights_map, full, {inner, tile.first_feature, tile.group});
    }
    const int num_boxes = num_row_boxes(tile);
    for (int box = static_cast<int>(cta_rank()); box < num_boxes; box += 2) {
      tma_load_multicast(b[0] + box * kStepN * kRowBytes, rows_map, full, {inner, tile.first_row + box * kStepN, 0});
    }
  }

  __device__ __forceinline__ void compute(const GemmTile& tile, Consumer& consumer) const {
    float accum[128];
    switch (num_row_boxes(tile)) {
      case 1:
        main_loop<32>(tile, consumer, accum);
        break;
      case 2:
        main_loop<64>(tile, consumer, accum);
        break;
      case 3:
        main_loop<96>(tile, consumer, accum);
        break;
      case 4:
        main_loop<128>(tile, consumer, accum);
        break;
      case 5:
        main_loop<160>(tile, consumer, accum);
        break;
      case 6:
        main_loop<192>(tile, consumer, accum);
        break;
      case 7:
        main_loop<224>(tile, consumer, accum);
        break;
      default:
        main_loop<256>(tile, consumer, accum);
    }
    epilogue(tile, consumer, accum);
  }

  template <int kRows>
  __device__ __forceinline__ void main_loop(const GemmTile& tile, Consumer& consumer, float (&accum)[128]) const {
    consumer.main_loop<kRows, kWeightMajor, Major::kK>(accum, num_stages(tile));
  }

  // Stores 64 rows at a time, by TMA if all of them belong to this tile.
  __device__ __forceinline__ void epilogue(const GemmTile& tile, Consumer& consumer, const float (&accum)[128]) const {
    const int lane = consumer.lane();
    const int first_feature = tile.first_feature + consumer.warpgroup * 64;
#pragma unroll
    for (int first = 0; first < kBlockN; first += kEpilogueRows) {
      if (first >= tile.num_rows) continue;
      unsigned char* const buffer = consumer.begin_epilogue();
#pragma unroll
      for (int row = 0; row < kEpilogueRows; row += 16) {
        stmatrix_x4_trans(buffer + swizzle_128b(row + lane / 16 * 8 + lane % 8, consumer.warp() * 2 + lane / 8 % 2),
                          accum + (first + row) / 2);
      }
      const int num_rows = tile.num_rows - first;
      consumer.end_epilogue([&] {
        if (num_rows >= kEpilogueRows) tma_store(out_map, buffer, {first_feature, tile.first_row + first, 0});
      });
      if (num_rows < kEpilogueRows)
        store_rows(tile.first_row + first, num_rows, first_feature, buffer, consumer.thread());
    }
  }

  __device__ __forceinline__ void store_rows(int first_row, int num_rows, int first_feature,
                                             const unsigned char* buffer, int thread) const {
    first_feature += thread % 8 * 8;
    if (first_feature >= args.features) return;
    auto* const out = static_cast<__nv_bfloat16*>(args.out) + first_feature;
    for (int row = thread / 8; row < num_rows; row += kWarpgroup / 8) {
      *reinterpret_cast<uint4*>(out + static_cast<std::int64_t>(first_row + row) * args.features) =
          *reinterpret_cast<const uint4*>(buffer + swizzle_128b(row, thread % 8));
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
    grouped_gemm(const __grid_constant__ Maps maps, const __grid_constant__ GroupedGemmArgs args) {
  if (threadIdx.x == 0) {
    for (int term = 0; term < args.num_terms; ++term) {
      prefetch_tensor_map(maps.rows[term]);
      prefetch_tensor_map(maps.weights[term]);
    }
    prefetch_tensor_map(maps.out);
  }
  run_persistent_gemm(GroupedGemm<kWeightMajor>{maps.rows, maps.weights, maps.out, args}, args.offsets, args.num_groups,
                      args.tile_counter);
}

}  // namespace

void d9d_launch_grouped_gemm(const GroupedGemmArgs& args, CUstream_st* stream) {
  const auto inner = static_cast<std::uint64_t>(args.inner), features = static_cast<std::uint64_t>(args.features),
             num_rows = static_cast<std::uint64_t>(args.num_rows), groups = static_cast<std::uint64_t>(args.num_groups);
  auto* const kernel = args.weights_are_transposed ? grouped_gemm<Major::kK> : grouped_gemm<Major::kMN>;
  prepare(kernel);
  Maps maps;
  for (int term = 0; term < args.num_terms; ++term) {
    const auto [rows, weights] = args.terms[term];
    maps.rows[term] = tensor_map({.data = rows, .sizes = {inner, num_rows, 1}, .box = {kBlockK, kStepN, 1}});
    maps.weights[term] =
        args.weights_are_transposed
            ? tensor_map({.data = weights, .sizes = {inner, features, groups}, .box = {kBlockK, kBlockM, 1}})
            : tensor_map({.data = weights, .sizes = {features, inner, groups}, .box = {64, kBlockK, 1}});
  }
  maps.out = tensor_map({.data = args.out, .sizes = {features, num_rows, 1}, .box = {64, kEpilogueRows, 1}});
  cudaMemsetAsync(args.tile_counter, 0, sizeof(*args.tile_counter), stream);
  kernel<<<num_persistent_blocks(), kThreads, sizeof(SharedStorage), stream>>>(maps, args);
  check_launch("grouped_mm");
}

}  // namespace d9d::kernels::detail
