#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/core/dtensor/layout.h"

#include "tests/core/dtensor/layout_oracle.h"

namespace d9d::element_rows_test {
namespace {

// Nothing is communicated.
DeviceMesh mesh_of(std::int64_t rank) {
  auto backend = std::make_unique<ThreadBackend>(std::make_shared<ThreadJob>(12), rank);
  return {"m", {{"a", 3}, {"b", 2}, {"c", 2}}, std::make_shared<World>(std::move(backend))};
}

TEST(ElementRows, Name_the_elements_that_a_rank_holds) {
  const FlatShard flat{.padded_numel = 1200, .offset_in_unit = 37};
  const std::vector<std::pair<std::vector<std::int64_t>, Placements>> layouts = {
      {{7, 3, 10}, {Replicate{}, Replicate{}, Replicate{}}},
      {{7, 3, 10}, {Shard{0}, Replicate{}, Shard{0}}},
      {{7, 4, 10}, {Shard{1}, Replicate{}, Replicate{}}},
      {{7, 3, 10}, {Shard{0}, Shard{2}, Replicate{}}},
      {{7, 3, 10}, {Shard{2}, Shard{2}, Partial{}}},
      {{1, 12}, {Shard{1}, Replicate{}, Replicate{}}},
      {{7, 3, 10}, {flat, flat, flat}},
      {{7, 3, 10}, {Shard{2}, flat, flat}},
      {{7, 3, 10}, {Shard{0}, Shard{1}, flat}},
      {{2}, {Shard{0}, Replicate{}, flat}},
      {{}, {Replicate{}, Replicate{}, Replicate{}}},
  };
  for (const auto& [shape, placements] : layouts) {
    std::int64_t numel = 1;
    for (const std::int64_t size : shape) numel *= size;
    const at::Tensor elements = at::arange(numel).reshape(shape);
    for (std::int64_t rank = 0; rank < 12; ++rank) {
      const DeviceMesh mesh = mesh_of(rank);
      const at::Tensor held = test::local_of(elements, mesh, placements).flatten();
      const ElementRows rows = element_rows(shape, mesh, placements);
      for (std::int64_t i = 0; i < held.numel(); ++i)
        ASSERT_EQ(rows[i], held[i].item<std::int64_t>()) << "layout of " << shape.size() << " dims, rank " << rank;
    }
  }
}

TEST(ElementRows, Are_one_row_where_memory_follows_the_whole_tensor) {
  const DeviceMesh mesh = mesh_of(5);
  EXPECT_EQ(element_rows({8, 4}, mesh, {Replicate{}, Replicate{}, Replicate{}}), ElementRows{});
  EXPECT_TRUE(element_rows({9, 4}, mesh, {Shard{0}, Replicate{}, Replicate{}}).is_one_row());
  EXPECT_TRUE(element_rows({1, 9}, mesh, {Shard{1}, Replicate{}, Replicate{}}).is_one_row());
  EXPECT_FALSE(element_rows({2, 9}, mesh, {Shard{1}, Replicate{}, Replicate{}}).is_one_row());
}

TEST(ElementRows, Refuse_two_cuts_behind_the_first_dim) {
  EXPECT_THROW((void)element_rows({2, 6, 6}, mesh_of(0), {Shard{1}, Shard{2}, Replicate{}}), ConfigError);
}

}  // namespace
}  // namespace d9d::element_rows_test
