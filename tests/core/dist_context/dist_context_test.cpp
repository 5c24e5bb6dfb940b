#include "d9d/core/dist_context/dist_context.h"

#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/communicator/peer_failed_error.h"
#include "d9d/core/launch/thread_ranks.h"

#include "tests/support/ranks.h"

namespace d9d::dist_context_test {
namespace {

using test::lone_rank;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The context of one rank of the mesh; nothing is communicated.
std::unique_ptr<DistContext> context_of(const DeviceMeshParameters& mesh, std::int64_t rank) {
  return std::make_unique<DistContext>(DistContextConfig{.mesh = mesh, .world = lone_rank(rank, mesh.world_size())});
}

constexpr DeviceMeshParameters kLargeMesh = {.pipeline_parallel = 2,
                                             .data_parallel_replicate = 2,
                                             .data_parallel_shard = 3,
                                             .context_parallel_replicate = 2,
                                             .context_parallel_shard = 2,
                                             .tensor_parallel = 2,
                                             .expert_parallel = 8};

TEST(DistContext, Has_the_axes_of_every_domain) {
  const auto context = context_of(kLargeMesh, 0);
  using Axes = std::vector<MeshAxis>;
  EXPECT_EQ(context->mesh(MeshDomain::kRegular).axes(),
            (Axes{{"pp", 2}, {"dp_replicate", 2}, {"dp_shard", 3}, {"cp_shard", 2}, {"cp_replicate", 2}, {"tp", 2}}));
  EXPECT_EQ(context->mesh(MeshDomain::kDense).axes(),
            (Axes{{"pp", 2}, {"dp_replicate", 2}, {"dp_cp_shard", 6}, {"cp_replicate", 2}, {"tp", 2}}));
  EXPECT_EQ(context->mesh(MeshDomain::kExpert).axes(), (Axes{{"pp", 2}, {"ep_replicate", 6}, {"ep_shard", 8}}));
  EXPECT_EQ(context->mesh(MeshDomain::kBatch).axes(), (Axes{{"pp", 2}, {"dp", 6}, {"cp", 4}, {"tp", 2}}));
  EXPECT_EQ(context->mesh(MeshDomain::kFlat).axes(), (Axes{{"world", 96}}));
}

// The closed forms of the reference's layout. The reference's expert mesh, however, left out tensor-parallel ranks.
TEST(DistContext, Places_every_rank_by_the_closed_forms) {
  for (std::int64_t rank = 0; rank < kLargeMesh.world_size(); ++rank) {
    const auto context = context_of(kLargeMesh, rank);
    const std::vector<std::int64_t>& at = context->mesh(MeshDomain::kRegular).coordinate();
    ASSERT_EQ(((((at[0] * 2 + at[1]) * 3 + at[2]) * 2 + at[3]) * 2 + at[4]) * 2 + at[5], rank);
    const auto dense = context->mesh(MeshDomain::kDense).coordinate();
    EXPECT_EQ(dense, (std::vector<std::int64_t>{at[0], at[1], at[2] * 2 + at[3], at[4], at[5]}));
    const auto batch = context->mesh(MeshDomain::kBatch).coordinate();
    EXPECT_EQ(batch, (std::vector<std::int64_t>{at[0], at[1] * 3 + at[2], at[3] * 2 + at[4], at[5]}));
    const std::int64_t k = rank % 48;
    EXPECT_EQ(context->mesh(MeshDomain::kExpert).coordinate(), (std::vector<std::int64_t>{at[0], k / 8, k % 8}));
    EXPECT_EQ(context->data_parallel_rank(), batch[1]);
  }
}

TEST(DistContext, Explains_a_mesh_that_does_not_fit_the_ranks) {
  const auto world = lone_rank(0, 6);
  EXPECT_THAT([&] { DistContext({.mesh = {.data_parallel_shard = 2, .tensor_parallel = 2}, .world = world}); },
              ThrowsMessage<ConfigError>(HasSubstr("for the 6 ranks that were started, got data_parallel_shard 2 x "
                                                   "tensor_parallel 2 = 4. Start as many ranks")));
}

TEST(DistContext, Qualifies_log_lines_by_the_coordinates) {
  std::vector<std::string> lines;
  const DistContext context({.mesh = {.data_parallel_shard = 2, .tensor_parallel = 2},
                             .world = lone_rank(3, 4),
                             .log_sink = [&](std::string_view line) { lines.emplace_back(line); }});
  context.log().info("ready");
  EXPECT_THAT(lines,
              ::testing::ElementsAre(::testing::AllOf(HasSubstr("[d9d] [dps:1-tp:1]"), HasSubstr("INFO - ready"))));
}

TEST(DistContext, Drops_log_lines_below_its_own_level) {
  const auto levels_at = [](LogLevel level) {
    std::vector<std::string> lines;
    const DistContext context({.world = lone_rank(0, 1), .log_level = level, .log_sink = [&](std::string_view line) {
                                 lines.emplace_back(line.substr(line.find(" - ") + 3));
                               }});
    context.log().debug("a");
    context.log().info("b");
    context.log().warning("c");
    context.log().error("d");
    return lines;
  };
  EXPECT_THAT(levels_at(LogLevel::kDebug), ::testing::ElementsAre("DEBUG - a", "INFO - b", "WARNING - c", "ERROR - d"));
  EXPECT_THAT(levels_at(LogLevel::kWarning), ::testing::ElementsAre("WARNING - c", "ERROR - d"));
  EXPECT_THAT(levels_at(DistContextConfig().log_level), ::testing::ElementsAre("INFO - b", "WARNING - c", "ERROR - d"));
}

TEST(DistContext, Writes_a_line_once_though_there_are_others) {
  std::vector<std::string> lines;
  const auto sink = [&](std::string_view line) { lines.emplace_back(line); };
  const DistContext first({.world = lone_rank(0, 1), .log_sink = sink});
  const DistContext second({.world = lone_rank(0, 1), .log_sink = sink});
  first.log().info("a");
  second.log().info("b");
  EXPECT_THAT(lines, ::testing::ElementsAre(HasSubstr("[d9d] [local] "), HasSubstr(" - INFO - b")));
}

TEST(DistContext, Runs_the_main_process_first) {
  std::atomic<bool> is_prepared = false;
  std::atomic<int> num_late = 0;
  run_thread_ranks(4, [&](const std::shared_ptr<World>& world) {
    const DistContext context({.mesh = {.data_parallel_shard = 4}, .world = world, .local_rank = world->rank()});
    for (int turn = 0; turn < 2; ++turn) {
      context.main_process_first([&] {
        if (context.is_main_process()) {
          is_prepared = true;
        } else if (is_prepared) {
          ++num_late;
        }
      });
      context.wait_world();
      is_prepared = false;
      context.wait_world();
    }
  });
  EXPECT_EQ(num_late, 6);
}

TEST(DistContext, Tells_the_others_when_the_main_process_failed) {
  std::atomic<int> num_told = 0;
  EXPECT_THAT(
      [&] {
        run_thread_ranks(3, [&](const std::shared_ptr<World>& world) {
          const DistContext context({.mesh = {.data_parallel_shard = 3}, .world = world, .local_rank = world->rank()});
          try {
            context.main_process_first([&] {
              D9D_CHECK(!context.is_main_process(), IoError, "no space left");
              ADD_FAILURE() << "ran after the failure";
            });
          } catch (const PeerFailedError& error) {
            EXPECT_THAT(error.what(), HasSubstr("rank 0 failed"));
            ++num_told;
          }
        });
      },
      ThrowsMessage<IoError>("rank 0: no space left"));
  EXPECT_EQ(num_told, 2);
}

// Runs four ranks as if on two machines.
void on_two_machines(const std::function<void(const DistContext&)>& body) {
  run_thread_ranks(4, [&](const std::shared_ptr<World>& world) {
    body(DistContext({.mesh = {.data_parallel_shard = 4},
                      .world = world,
                      .local_rank = world->rank() % 2,
                      .node_rank = world->rank() / 2,
                      .num_nodes = 2}));
  });
}

TEST(DistContext, Runs_the_first_process_of_each_machine_first) {
  std::atomic<int> num_first = 0;
  std::atomic<int> num_after_all_first = 0;
  on_two_machines([&](const DistContext& context) {
    context.local_main_process_first([&] {
      if (context.is_local_main_process()) {
        ++num_first;
      } else if (num_first == 2) {
        ++num_after_all_first;
      }
    });
    EXPECT_EQ(context.is_main_process(), context.rank() == 0);
    EXPECT_EQ(context.is_local_main_process(), context.rank() % 2 == 0);
  });
  EXPECT_EQ(num_first, 2);
  EXPECT_EQ(num_after_all_first, 2);
}

TEST(DistContext, Tells_all_machines_when_the_first_process_of_one_failed) {
  std::atomic<int> num_told = 0;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(
      [&] {
        on_two_machines([&](const DistContext& context) {
          try {
            context.local_main_process_first([&] {
              D9D_CHECK(context.rank() != 2, IoError, "no space left");
              if (!context.is_local_main_process()) ADD_FAILURE() << "ran after the failure";
            });
          } catch (const PeerFailedError& error) {
            EXPECT_THAT(error.what(), HasSubstr("rank 2 failed"));
            ++num_told;
          }
        });
      },
      ThrowsMessage<IoError>("rank 2: no space left"));
  EXPECT_EQ(num_told, 3);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));  // communication may take 10,000 s
}

}  // namespace
}  // namespace d9d::dist_context_test
