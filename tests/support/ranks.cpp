#include "tests/support/ranks.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/testing/ranks.h"

#include "tests/support/gpu_ranks.h"

namespace d9d::test {
namespace {

// Ends the other ranks.
struct FailedAssertion : std::runtime_error {
  using runtime_error::runtime_error;
};

}  // namespace

const char* to_string(RankBackend backend) {
  return backend == RankBackend::kThreads ? "threads" : backend == RankBackend::kGloo ? "gloo" : "nccl";
}

RankGroup group_of(const World& world, std::string name, std::vector<std::int64_t> ranks) {
  if (ranks.empty()) {
    ranks.resize(static_cast<std::size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  const std::int64_t index = std::find(ranks.begin(), ranks.end(), world.rank()) - ranks.begin();
  return {.name = std::move(name), .ranks = std::move(ranks), .index = index};
}

std::shared_ptr<World> lone_rank(std::int64_t rank, std::int64_t num_ranks) {
  return std::make_shared<World>(std::make_unique<ThreadBackend>(std::make_shared<ThreadJob>(num_ranks), rank));
}

void run_ranks(RankBackend backend, std::int64_t num_ranks, const std::function<void(World&)>& body,
               std::chrono::seconds time_limit) {
  if (backend == RankBackend::kNccl) return run_gpu_ranks(num_ranks, body);
  const auto kind = backend == RankBackend::kThreads ? testing::RankBackend::kThreads : testing::RankBackend::kGloo;
  try {
    testing::run_ranks(num_ranks,
                       [&](World& world) {
                         body(world);
                         if (::testing::Test::HasFatalFailure())
                           throw FailedAssertion("left the body after a failed ASSERT_*");
                       },
                       {.backend = kind, .time_limit = time_limit});
  } catch (const FailedAssertion&) {  // is reported already
  }
}

}  // namespace d9d::test
