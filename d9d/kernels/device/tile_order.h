// How the rows of groups are cut into tiles, and which tile is whose turn. The same code runs on the device, where
// every block finds the tiles from the offsets itself, and on the host, where tests look at all of them.
//
// Tiles of a group are about equally high: 300 rows are 160 + 140, not 256 + 44. Groups with dear tiles come first, and
// workers take turns there and back, so that all of them end at about the same time. Tiles of one group stay together,
// so that they find its weights in the L2 cache.
#pragma once

#include <cstdint>

namespace d9d::kernels::detail {

constexpr int kMaxTileRows = 256;
constexpr int kTileRowStep = 32;    // the tensor cores' work grows in such steps
constexpr int kTileFeatures = 256;  // of a cluster's two blocks together
constexpr int kMaxGroups = 288;     // of which a block's shared memory can hold the order

[[nodiscard]] constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
[[nodiscard]] constexpr int smaller(int a, int b) { return a < b ? a : b; }
[[nodiscard]] constexpr int larger(int a, int b) { return a < b ? b : a; }

// Of a group with `rows` rows.
[[nodiscard]] constexpr int num_row_tiles(int rows) { return ceil_div(rows, kMaxTileRows); }
// Of each of its tiles but the last, which may have fewer.
[[nodiscard]] constexpr int rows_of_tile(int rows) {
  return rows == 0 ? 0 : ceil_div(ceil_div(rows, num_row_tiles(rows)), kTileRowStep) * kTileRowStep;
}

struct RowRange {
  int first;
  int count;
};
// Within the group.
[[nodiscard]] constexpr RowRange row_tile(int rows, int tile) {
  const int step = rows_of_tile(rows);
  return {tile * step, smaller(step, rows - tile * step)};
}

// What the tiles of one group are worth.
struct GroupTiles {
  int cost;  // of one tile, in any unit
  int count;
};

// Groups by falling cost of a tile.
struct TileOrder {
  int offset[kMaxGroups + 1];       // of a group's rows
  int first_tile[kMaxGroups + 1];   // position of the first tile of the group at a place; the last: of all tiles
  std::uint16_t group[kMaxGroups];  // at a place

  // The place whose group has the tile at `position`, from an earlier answer on.
  [[nodiscard]] constexpr int place_of(int position, int place) const {
    while (position >= first_tile[place + 1]) ++place;
    return place;
  }
};

// Fills `order`. Called by each of `num_threads` threads; `sync` makes all of them meet. offsets[g]: the first row of
// group g, and of the one after the last; tiles_of(rows of a group) is a GroupTiles; scratch: kMaxGroups of them that
// the threads share.
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

}  // namespace d9d::kernels::detail
