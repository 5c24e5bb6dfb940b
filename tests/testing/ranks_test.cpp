#include "d9d/testing/ranks.h"

#include <atomic>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::ranks_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Ranks, Communicate_by_threads_and_by_sockets) {
  for (const auto backend : {testing::RankBackend::kThreads, testing::RankBackend::kGloo}) {
    std::atomic<int> num_ranks = 0;
    testing::run_ranks({.data_parallel_replicate = 3},
                       [&](const DistContext& context) {
                         const at::Tensor rank = at::full({1}, static_cast<double>(context.rank()));
                         context.mesh(MeshDomain::kBatch).communicator()->all_reduce(rank, ReduceOp::kSum).wait();
                         EXPECT_EQ(rank.item<double>(), 3);
                         ++num_ranks;
                       },
                       {.backend = backend});
    EXPECT_EQ(num_ranks, 3);
  }
}

TEST(Ranks, That_throw_end_the_others_which_wait_for_them) {
  const auto body = [](const DistContext& context) {
    if (context.rank() == 1) throw UsageError("[test] rank 1 has enough.");
    context.mesh(MeshDomain::kBatch).communicator()->barrier();
  };
  EXPECT_THAT([&] { testing::run_ranks({.data_parallel_replicate = 2}, body); },
              ThrowsMessage<Error>(HasSubstr("rank 1 has enough")));
}

TEST(Ranks, That_wait_for_ever_end_at_the_limit) {
  const auto body = [](const DistContext& context) {  // each waits for the other, elsewhere
    const DeviceMesh& all = context.mesh(MeshDomain::kBatch);
    context.rank() == 0 ? all.communicator(Traffic::kGradients)->barrier() : all.communicator()->barrier();
  };
  EXPECT_THAT(
      [&] { testing::run_ranks({.data_parallel_replicate = 2}, body, {.time_limit = std::chrono::seconds(1)}); },
      ThrowsMessage<StateError>(HasSubstr("to end within 1 s, got some that still ran")));
}

}  // namespace
}  // namespace d9d::ranks_test
