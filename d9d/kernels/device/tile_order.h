// The tiles of a persistent GEMM (persistent_gemm.cuh): how large they are, how the rows of groups are cut into them,
// and in which order they are computed. The same code runs on the device, where every block computes the tiles from the
// offsets itself, and on the host, where tests check all of them.
//
// Tiles of a group have about the same number of rows: 300 rows are 160 + 140, not 256 + 44. Groups with expensive
// tiles come first, so that all clusters end at about the same time. Tiles of one group stay together, so that they
// find the group's weights in the L2 cache.
#pragma once

#include <cstdint>

namespace d9d::kernels::detail::persistent_gemm {

// The tile that a cluster of two blocks computes at a time: kBlockM of the result's M per block, and up to kBlockN of
// its N, the same for both. Rows are the N dim, because wgmma takes any multiple of 8 as N but only 64 as M.
constexpr int kBlockM = 128;
constexpr int kClusterM = 2 * kBlockM;
constexpr int kBlockN = 256;
constexpr int kStepN = 32;       // tiles are cut to multiples of this many rows
constexpr int kMaxGroups = 288;  // limited by the shared memory that holds the order

[[nodiscard]] constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
[[nodiscard]] constexpr int smaller(int a, int b) { return a < b ? a : b; }
[[nodiscard]] constexpr int larger(int a, int b) { return a < b ? b : a; }

// The number of tiles of a group with `rows` rows.
[[nodiscard]] constexpr int num_row_tiles(int rows) { return ceil_div(rows, kBlockN); }
// The number of rows of each tile of the group but the last, which may have fewer.
[[nodiscard]] constexpr int rows_of_tile(int rows) {
  return rows == 0 ? 0 : ceil_div(ceil_div(rows, num_row_tiles(rows)), kStepN) * kStepN;
}

struct RowRange {
  int first;
  int count;
};
// The rows of one tile, counted from the first of the group.
[[nodiscard]] constexpr RowRange row_tile(int rows, int tile) {
  const int step = rows_of_tile(rows);
  return {tile * step, smaller(step, rows - tile * step)};
}

// The tiles of one group.
struct GroupTiles {
  int cost;  // of one tile, in any unit
  int count;
};

// Groups sorted by descending cost of a tile. A place is an index in this order; a position is an index in the sequence
// of all tiles.
struct TileOrder {
  int offset[kMaxGroups + 1];       // the first row of each group, and the end of the last one
  int first_tile[kMaxGroups + 1];   // by place: the position of its first tile; then the number of all tiles
  std::uint16_t group[kMaxGroups];  // by place: the group

  // The place of the group to which the tile at `position` belongs. `place` is 0 or the result for an earlier position.
  [[nodiscard]] constexpr int place_of(int position, int place) const {
    while (position >= first_tile[place + 1]) ++place;
    return place;
  }
};

// Fills `order`. Each of `num_threads` threads calls it; sync() is a barrier for them. offsets[g] is the first row of
// group g, offsets[num_groups] the number of rows; tiles_of(number of rows of a group) returns its GroupTiles; scratch
// has kMaxGroups elements that the threads share.
template <class Offsets, class TilesOf, class Sync>
constexpr void order_tiles(TileOrder& order, const Offsets& offsets, int num_groups, int thread, int num_threads,
                           const TilesOf& tiles_of, GroupTiles* scratch, const Sync& sync) {
  for (int g = thread; g <= num_groups; g += num_threads) {
    order.offset[g] = offsets[g];
    if (g < num_groups) scratch[g] = tiles_of(offsets[g + 1] - offsets[g]);
  }
  sync();
  for (int g = thread; g < num_groups; g += num_threads) {
    const GroupTiles mine = scratch[g];
    int place = 0, first = 0;
    for (int h = 0; h < num_groups; ++h) {
      const GroupTiles other = scratch[h];
      if (other.cost > mine.cost || (other.cost == mine.cost && h < g)) {
        ++place;
        first += other.count;
      }
    }
    order.group[place] = static_cast<std::uint16_t>(g);
    order.first_tile[place] = first;
    if (place == num_groups - 1) order.first_tile[num_groups] = first + mine.count;
  }
  sync();
}

}  // namespace d9d::kernels::detail::persistent_gemm
