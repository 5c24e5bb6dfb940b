// Formula: out[g, i, o] = sum over the rows n of group g of x[n, i] * y[n, o].
// Legend:  N rows in G groups, i = in, o = out_features.
// Mapping: persistent GEMM, K-grouped: a cluster of two blocks computes 256 columns of x by 256 columns of y for one
//          group; K is the rows of the group. The last stage zeroes loaded rows of the next group.
// Numerics: bf16 in, fp32 accumulators, rounded once to bf16, or stored as fp32. The result is bitwise reproducible.
// Traffic: x is read once for each 256 columns of y and y once for each 256 columns of x, mostly from the L2 cache; the
//          result is written once.
#include "d9d/kernels/device/persistent_gemm.cuh"
#include "d9d/kernels/device/tensor_map.cuh"
#include "d9d/kernels/grouped_mm/grouped_gemm_kernel.h"

namespace d9d::kernels::detail {
namespace {

using namespace persistent_gemm;

constexpr int kWgmmaK = 16;

struct WgradTile {
  int group;
  int first_row;
  int num_rows;
  int first_in;  // of this block
  int first_out;
};

// A problem of run_persistent_gemm(). A is columns of x, B columns of y; T is the element type of the result.
template <class T>
struct GroupedGemmWgrad {
  static constexpr bool kIsFloat = sizeof(T) == sizeof(float);

  const CUtensorMap& x_map;
  const CUtensorMap& y_map;
  const CUtensorMap& out_map;
  const GroupedGemmWgradArgs& args;

  __device__ __forceinline__ int num_out_tiles() const { return ceil_div(args.out_features, kBlockN); }

  __device__ __forceinline__ GroupTiles tiles_of(int rows) const {
    return {.cost = rows, .count = ceil_div(args.in, kClusterM) * num_out_tiles()};
  }

  __device__ __forceinline__ WgradTile tile_at(const TileOrder& order, int g, int index) const {
    const int first_row = order.offset[g];
    return {.group = g,
            .first_row = first_row,
            .num_rows = order.offset[g + 1] - first_row,
            .first_in = index / num_out_tiles() * kClusterM + static_cast<int>(cta_rank()) * kBlockM,
            .first_out = index % num_out_tiles() * kBlockN};
  }

  __device__ __forceinline__ int num_stages(const WgradTile& tile) const { return ceil_div(tile.num_rows, kBlockK); }
  __device__ __forceinline__ int bytes_of_stage(const WgradTile&, int /*stage*/) const { return 6 * kBoxBytes; }

  __device__ __forceinline__ void load(const WgradTile& tile, int i, unsigned char (*a)[kBoxBytes],
                                       unsigned char (*b)[kBoxBytes], Mbarrier& full) const {
    const int row = tile.first_row + i * kBlockK;
#pragma unroll
    for (int box = 0; box < 2; ++box) tma_load(a[box], x_map, full, {tile.first_in + box * 64, row, 0});
    const int half = static_cast<int>(cta_rank()) * 2;
#pragma unroll
    for (int box = half; box < half + 2; ++box)
      tma_load_multicast(b[box], y_map, full, {tile.first_out + box * 64, row, 0});
  }

  __device__ __forceinline__ void compute(const WgradTile& tile, Consumer& consumer) const {
    float accum[128];
    const int num_whole = tile.num_rows / kBlockK;
    if (num_whole > 0) {
      consumer.main_loop<kBlockN, Major::kMN, Major::kMN>(accum, num_whole);
    } else {
#pragma unroll
      for (float& sum : accum) sum = 0;
    }
    if (tile.num_rows % kBlockK > 0) main_loop_of_rest(tile.num_rows % kBlockK, consumer, accum);
    if constexpr (kIsFloat) {
      epilogue_float(tile, consumer, accum);
    } else {
      epilogue_bf16(tile, consumer, accum);
    }
  }

  // Multiplies the last stage if the group's rows fill only a part of it. Rows of the next group, which were loaded
  // too, are set to zero in A and B, so that they do not count, not even as NaN times zero.
  __device__ __forceinline__ void main_loop_of_rest(int num_rows, Consumer& consumer, float (&accum)[128]) const {
    SharedStorage& shared = consumer.shared;
    const int num_steps = ceil_div(num_rows, kWgmmaK);
    const int stage = consumer.state.stage;
    mbarrier_wait_parity(shared.full[stage], consumer.state.phase);
    const int num_chunks = (num_steps * kWgmmaK - num_rows) * 8;  // chunks of 16 bytes to clear, per box
    for (int i = consumer.thread(); i < num_chunks; i += kWarpgroup) {
      const int at = num_rows * 128 + i * 16;
      *reinterpret_cast<uint4*>(shared.a[stage][consumer.warpgroup] + at) = {};
#pragma unroll
      for (int box = 0; box < 4; ++box) *reinterpret_cast<uint4*>(shared.b[stage][box] + at) = {};
    }
    if (num_chunks > 0) {
      fence_proxy_async();
      consumer.sync();
    }
    switch (num_steps) {
      case 1:
        wgmma_steps<1>(consumer, accum);
        break;
      case 2:
        wgmma_steps<2>(consumer, accum);
        break;
      case 3:
        wgmma_steps<3>(consumer, accum);
        break;
      default:
        wgmma_steps<4>(consumer, accum);
    }
    consumer.release(stage);
    consumer.state.advance();
  }

  template <int kSteps>
  __device__ __forceinline__ void wgmma_steps(const Consumer& consumer, float (&accum)[128]) const {
    fence_accumulators(accum);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) consumer.start_wgmma<kBlockN, Major::kMN, Major::kMN>(accum, step, true);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    fence_accumulators(accum);
  }

  // The columns of an epilogue buffer, which one TMA store writes.
  static constexpr int kEpilogueColumns = 128 / sizeof(T);

  __device__ __forceinline__ void store_buffer(const WgradTile& tile, const Consumer& consumer, unsigned char* buffer,
                                               int column) const {
    const TmaCoordinates at = {tile.first_out + column, tile.first_in + consumer.warpgroup * 64, tile.group};
    consumer.end_epilogue([&] { tma_store(out_map, buffer, at); });
  }

  __device__ __forceinline__ void epilogue_bf16(const WgradTile& tile, Consumer& consumer, float (&accum)[128]) const {
    const int lane = consumer.lane();
#pragma unroll
    for (int column = 0; column < kBlockN; column += kEpilogueColumns) {
      if (tile.first_out + column >= args.out_features) continue;
      unsigned char* const buffer = consumer.begin_epilogue();
#pragma unroll
      for (int j = 0; j < 8; j += 2)
        stmatrix_x4(buffer + swizzle_128b(consumer.warp() * 16 + lane % 16, j + lane / 16),
                    accum + (column + 8 * j) / 2);
      store_buffer(tile, consumer, buffer, column);
    }
  }

  __device__ __forceinline__ void epilogue_float(const WgradTile& tile, Consumer& consumer, float (&accum)[128]) const {
    const int lane = consumer.lane();
    const int row = consumer.warp() * 16 + lane / 4;
#pragma unroll
    for (int column = 0; column < kBlockN; column += kEpilogueColumns) {
      if (tile.first_out + column >= args.out_features) continue;
      unsigned char* const buffer = consumer.begin_epilogue();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const four = accum + column / 2 + 4 * j;
        const int at = lane % 2 * 8, chunk = 2 * j + lane % 4 / 2;
        *reinterpret_cast<float2*>(buffer + swizzle_128b(row, chunk) + at) = {four[0], four[1]};
        *reinterpret_cast<float2*>(buffer + swizzle_128b(row + 8, chunk) + at) = {four[2], four[3]};
      }
      store_buffer(tile, consumer, buffer, column);
    }
  }
};

template <class T>
__global__ void __cluster_dims__(2) __launch_bounds__(kThreads, 1)
    grouped_gemm_wgrad(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap y_map,
                       const __grid_constant__ CUtensorMap out_map, const __grid_constant__ GroupedGemmWgradArgs args) {
  if (threadIdx.x == 0) {
    prefetch_tensor_map(x_map);
    prefetch_tensor_map(y_map);
    prefetch_tensor_map(out_map);
  }
  run_persistent_gemm(GroupedGemmWgrad<T>{x_map, y_map, out_map, args}, args.offsets, args.num_groups,
                      args.tile_counter);
}

}  // namespace

void d9d_launch_grouped_gemm_wgrad(const GroupedGemmWgradArgs& args, CUstream_st* stream) {
  const auto in = static_cast<std::uint64_t>(args.in), out = static_cast<std::uint64_t>(args.out_features),
             num_rows = static_cast<std::uint64_t>(args.num_rows), groups = static_cast<std::uint64_t>(args.num_groups);
  const auto launch = [&](auto* kernel) {
    prepare(kernel);
    cudaMemsetAsync(args.tile_counter, 0, sizeof(*args.tile_counter), stream);
    kernel<<<num_persistent_blocks(), kThreads, sizeof(SharedStorage), stream>>>(
        tensor_map({.data = args.x, .sizes = {in, num_rows, 1}, .box = {64, kBlockK, 1}}),
        tensor_map({.data = args.y, .sizes = {out, num_rows, 1}, .box = {64, kBlockK, 1}}),
        tensor_map({.data = args.out,
                    .sizes = {out, in, groups},
                    .box = {args.out_is_float ? 32U : 64U, 64, 1},
                    .is_float = args.out_is_float}),
        args);
  };
  if (args.out_is_float) {
    launch(grouped_gemm_wgrad<float>);
  } else {
    launch(grouped_gemm_wgrad<__nv_bfloat16>);
  }
  check_launch("grouped_mm");
}

}  // namespace d9d::kernels::detail
