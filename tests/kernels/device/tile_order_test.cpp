#include "d9d/kernels/device/tile_order.h"

#include <algorithm>
#include <barrier>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

namespace d9d::kernels::detail::persistent_gemm::tile_order_test {
namespace {

using ::testing::Each;

std::vector<int> uneven_counts(int num_groups, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<int> counts(static_cast<std::size_t>(num_groups));
  for (int& count : counts) count = engine() % 4 == 0 ? 0 : static_cast<int>(engine() % 1500);
  return counts;
}

GroupTiles tiles_of(int rows, int num_feature_tiles) {
  return {.cost = rows_of_tile(rows), .count = num_row_tiles(rows) * num_feature_tiles};
}

std::unique_ptr<TileOrder> order_of(const std::vector<int>& counts, int num_feature_tiles, int num_threads = 1) {
  auto order = std::make_unique<TileOrder>();
  std::vector<GroupTiles> scratch(kMaxGroups);
  std::vector<std::int32_t> offsets = {0};
  for (const int count : counts) offsets.push_back(offsets.back() + count);
  std::barrier<> all(num_threads);
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < num_threads; ++thread) {
    threads.emplace_back([&, thread] {
      order_tiles(
          *order, offsets.data(), static_cast<int>(counts.size()), thread, num_threads,
          [&](int rows) { return tiles_of(rows, num_feature_tiles); }, scratch.data(), [&] { all.arrive_and_wait(); });
    });
  }
  return order;
}

TEST(TileOrder, Cut_a_group_into_tiles_of_about_equal_height) {
  for (int rows = 1; rows < 3000; ++rows) {
    int next = 0;
    for (int tile = 0; tile < num_row_tiles(rows); ++tile) {
      const RowRange range = row_tile(rows, tile);
      EXPECT_EQ(range.first, next);
      EXPECT_GT(range.count, 0);
      EXPECT_LE(range.count, kBlockN);
      next += range.count;
    }
    EXPECT_EQ(next, rows);
    EXPECT_LT(rows_of_tile(rows) - rows / num_row_tiles(rows), kStepN + 1);
  }
  EXPECT_EQ(num_row_tiles(0), 0);
}

struct Work {
  std::vector<int> times_done;  // for each tile, in the order of groups
  std::vector<int> cost;        // for each worker
};

// Assigns each next tile to the worker with the least work.

Work work_of(const std::vector<int>& counts, int num_feature_tiles, int num_workers) {
  const auto order = order_of(counts, num_feature_tiles);
  const int num_groups = static_cast<int>(counts.size());
  std::vector<int> first(counts.size() + 1);
  for (std::size_t g = 0; g < counts.size(); ++g)
    first[g + 1] = first[g] + tiles_of(counts[g], num_feature_tiles).count;
  Work work{.times_done = std::vector<int>(static_cast<std::size_t>(first.back())),
            .cost = std::vector<int>(static_cast<std::size_t>(num_workers))};
  std::vector<int> place_of_worker(static_cast<std::size_t>(num_workers));
  for (int tile = 0; tile < order->first_tile[num_groups]; ++tile) {
    const auto worker = static_cast<std::size_t>(std::ranges::min_element(work.cost) - work.cost.begin());
    int& place = place_of_worker[worker];
    place = order->place_of(tile, place);
    const auto group = static_cast<std::size_t>(order->group[place]);
    ++work.times_done.at(static_cast<std::size_t>(first[group] + tile - order->first_tile[place]));
    work.cost[worker] += tiles_of(counts[group], 1).cost;
  }
  return work;
}

TEST(TileOrder, Are_each_done_once_in_order) {
  for (const int num_groups : {1, 2, 7, 128, kMaxGroups}) {
    for (const int num_workers : {1, 2, 65, 66}) {
      for (const int num_feature_tiles : {1, 3, 6}) {
        const auto counts = uneven_counts(num_groups, static_cast<unsigned>(num_groups));
        EXPECT_THAT(work_of(counts, num_feature_tiles, num_workers).times_done, Each(1));
      }
    }
  }
  EXPECT_TRUE(work_of({0, 0, 0}, 6, 66).times_done.empty());
}

TEST(TileOrder, Let_all_workers_end_together_when_groups_are_uneven) {
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    const Work work = work_of(uneven_counts(128, seed), 6, 66);
    EXPECT_LE(std::ranges::max(work.cost) - std::ranges::min(work.cost), kBlockN / 2);
  }
}

TEST(TileOrder, Are_ordered_alike_by_any_number_of_threads) {
  const auto counts = uneven_counts(200, 5);
  const auto one = order_of(counts, 6, 1), many = order_of(counts, 6, 5);
  for (int place = 0; place < 200; ++place) {
    EXPECT_EQ(one->group[place], many->group[place]);
    EXPECT_EQ(one->first_tile[place + 1], many->first_tile[place + 1]);
  }
}

}  // namespace
}  // namespace d9d::kernels::detail::persistent_gemm::tile_order_test
