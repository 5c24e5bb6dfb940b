// Formula: with d = grad_out @ weight + grad_hidden @ a and s = sigmoid(gate):
//          grad_gate = d * up * s * (1 + gate * (1 - s)), grad_up = d * gate * s.
// Legend:  grad_out [T, H], weight [H, F]; grad_hidden [T, R], a [R, F] of a term of low rank, where there is one;
//          gate, up and their gradients [T, F]; d [T, F] stays in registers.
// Mapping: persistent GEMM: a cluster of two blocks computes 256 features of 256 rows; its epilogue multiplies by the
//          derivatives. The tensor cores compute the transpose: the weight is A (M = features), grad_out B (N = rows).
// Numerics: bf16 in, fp32 accumulators, fp32 epilogue with fast exp and reciprocal, rounded once to bf16.
// Traffic: grad_out and weight are read as in a GEMM, mostly from the L2 cache; gate and up are read once, their
//          gradients, and silu(gate) * up where it is asked for, are written once.
#include "d9d/kernels/device/activation.cuh"
#include "d9d/kernels/device/persistent_gemm.cuh"
#include "d9d/kernels/device/tensor_map.cuh"
#include "d9d/kernels/silu_mul_linear/silu_mul_linear_kernel.h"

namespace d9d::kernels::detail {
namespace {

using namespace persistent_gemm;

constexpr int kPieceRows = 128;
constexpr int kBand = 8;  // feature tiles of a band: their weights stay in L2 while the tiles of all rows are computed

struct Tile {
  int first_row;
  int num_pieces;     // pieces of kPieceRows rows that each warpgroup has
  int first_feature;  // of this block
};

struct Maps {
  CUtensorMap grad_out;
  CUtensorMap weight;
  CUtensorMap gate;
  CUtensorMap up;
  CUtensorMap grad_gate;
  CUtensorMap grad_up;
  CUtensorMap product;
  CUtensorMap grad_hidden;
  CUtensorMap a;
};

// Widens both numbers of a pair of bf16.
__device__ __forceinline__ float2 unpack_bf16(std::uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000U)};
}

// A problem of run_persistent_gemm(). The stages of the matrix product are followed by stages with gate and up, each
// for 128 rows of the features of one warpgroup. Those of the first warpgroup come first, so that it can begin its next
// tile. The epilogue overwrites gate and up in shared memory with their gradients, puts their product where the stages
// of the matrix product have the weight, and stores all from there.
struct SiluMulLinearBackward {
  const Maps& maps;
  const SiluMulLinearBackwardArgs& args;

  __device__ __forceinline__ int num_feature_tiles() const { return ceil_div(args.num_features, kClusterM); }
  __device__ __forceinline__ int num_row_tiles() const { return ceil_div(args.num_rows, kBlockN); }
  __device__ __forceinline__ int num_output_stages() const { return ceil_div(args.num_outputs, kBlockK); }
  // Those of the term of low rank follow those of the weight.
  __device__ __forceinline__ int num_inner_stages() const { return num_output_stages() + ceil_div(args.rank, kBlockK); }

  __device__ __forceinline__ GroupTiles tiles_of(int) const {
    return {.cost = 1, .count = num_row_tiles() * num_feature_tiles()};
  }

  __device__ __forceinline__ Tile tile_at(const TileOrder&, int /*group*/, int index) const {
    const int band = index / (kBand * num_row_tiles()) * kBand;
    const int in_band = index - band * num_row_tiles();
    const int width = smaller(kBand, num_feature_tiles() - band);
    const int first_row = in_band / width * kBlockN;
    return {.first_row = first_row,
            .num_pieces = smaller(ceil_div(args.num_rows - first_row, kPieceRows), kBlockN / kPieceRows),
            .first_feature = (band + in_band % width) * kClusterM + static_cast<int>(cta_rank()) * kBlockM};
  }

  __device__ __forceinline__ int num_stages(const Tile& tile) const { return num_inner_stages() + 2 * tile.num_pieces; }
  __device__ __forceinline__ int bytes_of_stage(const Tile&, int i) const {
    return i < num_inner_stages() ? 6 * kBoxBytes : 4 * kBoxBytes;
  }

  __device__ __forceinline__ void load(const Tile& tile, int i, unsigned char (*a)[kBoxBytes],
                                       unsigned char (*b)[kBoxBytes], Mbarrier& full) const {
    if (i < num_inner_stages()) {
      const bool is_of_term = i >= num_output_stages();
      const CUtensorMap& weight = is_of_term ? maps.a : maps.weight;
      const CUtensorMap& grad = is_of_term ? maps.grad_hidden : maps.grad_out;
      const int inner = (is_of_term ? i - num_output_stages() : i) * kBlockK;
      const int half = static_cast<int>(cta_rank());
      tma_load(a[0], weight, full, {tile.first_feature, inner, 0});
      tma_load(a[1], weight, full, {tile.first_feature + 64, inner, 0});
      tma_load_multicast(b[2 * half], grad, full, {inner, tile.first_row + half * kBlockN / 2, 0});
      return;
    }
    const int piece = i - num_inner_stages();
    const int warpgroup = piece < tile.num_pieces ? 0 : 1;
    const TmaCoordinates at = place_of(tile, warpgroup, piece - warpgroup * tile.num_pieces);
    tma_load(b[0], maps.gate, full, at);
    tma_load(b[2], maps.up, full, at);
  }

  __device__ __forceinline__ TmaCoordinates place_of(const Tile& tile, int warpgroup, int piece) const {
    return {tile.first_feature + warpgroup * 64, tile.first_row + piece * kPieceRows, 0};
  }

  __device__ __forceinline__ void compute(const Tile& tile, Consumer& consumer) const {
    float accum[128];
    consumer.main_loop<kBlockN, Major::kMN, Major::kK>(accum, num_inner_stages(), [&] {
      if (consumer.stage_being_stored >= 0) release<0>(consumer, consumer.stage_being_stored);
    });
    if (consumer.warpgroup == 1) skip(tile, consumer);
#pragma unroll
    for (int piece = 0; piece < kBlockN / kPieceRows; ++piece) {
      if (piece >= tile.num_pieces) continue;
      epilogue(tile, piece, consumer, accum + piece * kPieceRows / 2);
      if (piece > 0) release<1>(consumer, consumer.stage_being_stored);
      consumer.stage_being_stored = consumer.state.stage;
      consumer.state.advance();
    }
    if (consumer.warpgroup == 0) skip(tile, consumer);
  }

  // Releases the stages of the other warpgroup without reading them. It waits until they are full: an earlier arrival
  // would count for the previous contents of the stage.
  __device__ __forceinline__ void skip(const Tile& tile, Consumer& consumer) const {
    for (int i = 0; i < tile.num_pieces; ++i, consumer.state.advance()) {
      mbarrier_wait_parity(consumer.shared.full[consumer.state.stage], consumer.state.phase);
      consumer.release(consumer.state.stage);
    }
  }

  // Releases a stage that TMA stores read from, after all but the last kPending groups of stores have read it.
  template <int kPending>
  __device__ __forceinline__ void release(const Consumer& consumer, int stage) const {
    if (consumer.thread() == 0) tma_store_wait_read<kPending>();
    __syncwarp();
    consumer.release(stage);
  }

  // accum holds 128 rows. Each warp reads and writes its own 16 features only.
  __device__ __forceinline__ void epilogue(const Tile& tile, int piece, const Consumer& consumer,
                                           const float* accum) const {
    const int stage = consumer.state.stage, lane = consumer.lane();
    unsigned char* const gate = consumer.shared.b[stage][0];
    unsigned char* const up = consumer.shared.b[stage][2];
    unsigned char* const product = consumer.shared.a[stage][0];  // both boxes; the other warpgroup skips this stage
    const bool wants_product = args.product != nullptr;
    mbarrier_wait_parity(consumer.shared.full[stage], consumer.state.phase);
#pragma unroll
    for (int row = 0; row < kPieceRows; row += 16) {
      const int at = swizzle_128b(row + lane / 16 * 8 + lane % 8, consumer.warp() * 2 + lane / 8 % 2);
      std::uint32_t gates[4], ups[4];
      ldmatrix_x4_trans(gate + at, gates);
      ldmatrix_x4_trans(up + at, ups);
      float grad_gate[8], grad_up[8], products[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float2 g2 = unpack_bf16(gates[i / 2]), u2 = unpack_bf16(ups[i / 2]);
        const float d = accum[row / 2 + i], g = i % 2 == 0 ? g2.x : g2.y, u = i % 2 == 0 ? u2.x : u2.y;
        const float s = fast_sigmoid(g);
        grad_gate[i] = d * u * s * fmaf(g, 1.0F - s, 1.0F);
        grad_up[i] = d * (g * s);
        products[i] = silu<__nv_bfloat16>(g) * u;  // bit for bit what silu_mul() gave in forward
      }
      stmatrix_x4_trans(gate + at, grad_gate);
      stmatrix_x4_trans(up + at, grad_up);
      if (wants_product) stmatrix_x4_trans(product + at, products);
    }
    fence_proxy_async();
    consumer.sync();
    if (consumer.thread() != 0) return;
    const TmaCoordinates to = place_of(tile, consumer.warpgroup, piece);
    tma_store(maps.grad_gate, gate, to);
    tma_store(maps.grad_up, up, to);
    if (wants_product) tma_store(maps.product, product, to);
    tma_store_commit();
  }
};

__global__ void __cluster_dims__(2) __launch_bounds__(kThreads, 1)
    silu_mul_linear_backward(const __grid_constant__ Maps maps,
                             const __grid_constant__ SiluMulLinearBackwardArgs args) {
  if (threadIdx.x == 0) {
    prefetch_tensor_map(maps.grad_out);
    prefetch_tensor_map(maps.weight);
    prefetch_tensor_map(maps.gate);
    prefetch_tensor_map(maps.up);
    prefetch_tensor_map(maps.grad_gate);
    prefetch_tensor_map(maps.grad_up);
    if (args.product != nullptr) prefetch_tensor_map(maps.product);
    if (args.rank > 0) {
      prefetch_tensor_map(maps.grad_hidden);
      prefetch_tensor_map(maps.a);
    }
  }
  run_persistent_gemm(SiluMulLinearBackward{maps, args}, OneGroup{args.num_rows}, 1, args.tile_counter);
}

}  // namespace

void d9d_launch_silu_mul_linear_backward(const SiluMulLinearBackwardArgs& args, CUstream_st* stream) {
  const auto rows = static_cast<std::uint64_t>(args.num_rows), features = static_cast<std::uint64_t>(args.num_features),
             outputs = static_cast<std::uint64_t>(args.num_outputs), rank = static_cast<std::uint64_t>(args.rank);
  const auto piece_of = [&](const void* data, std::int64_t row_stride) {
    return tensor_map({.data = data,
                       .sizes = {features, rows, 1},
                       .box = {64, kPieceRows, 1},
                       .row_stride = static_cast<std::uint64_t>(row_stride)});
  };
  const auto grad_of = [&](const void* data, std::uint64_t columns) {
    return tensor_map({.data = data, .sizes = {columns, rows, 1}, .box = {kBlockK, kBlockN / 2, 1}});
  };
  const auto weight_of = [&](const void* data, std::uint64_t columns) {
    return tensor_map({.data = data, .sizes = {features, columns, 1}, .box = {64, kBlockK, 1}});
  };
  prepare(silu_mul_linear_backward);
  const Maps maps{.grad_out = grad_of(args.grad_out, outputs),
                  .weight = weight_of(args.weight, outputs),
                  .gate = piece_of(args.gate, args.gate_row_stride),
                  .up = piece_of(args.up, args.up_row_stride),
                  .grad_gate = piece_of(args.grad_gate, args.grad_row_stride),
                  .grad_up = piece_of(args.grad_up, args.grad_row_stride),
                  .product = args.product == nullptr ? CUtensorMap{} : piece_of(args.product, args.num_features),
                  .grad_hidden = rank == 0 ? CUtensorMap{} : grad_of(args.grad_hidden, rank),
                  .a = rank == 0 ? CUtensorMap{} : weight_of(args.a, rank)};
  cudaMemsetAsync(args.tile_counter, 0, sizeof(*args.tile_counter), stream);
  silu_mul_linear_backward<<<num_persistent_blocks(), kThreads, sizeof(SharedStorage), stream>>>(maps, args);
  check_launch("silu_mul_linear");
}

}  // namespace d9d::kernels::detail
