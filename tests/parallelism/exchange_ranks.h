// Ranks on which exchanges through peer memory are tested.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "d9d/core/peer_memory/link_watch.h"

#include "tests/parallelism/one_rank.h"
#include "tests/support/gpu_ranks.h"

namespace d9d::test {

struct ExchangeRanks {
  RankBackend backend;
  std::int64_t num_ranks;
};

inline std::string name_of_ranks(const ::testing::TestParamInfo<ExchangeRanks>& info) {
  return std::string(to_string(info.param.backend)) + std::to_string(info.param.num_ranks);
}
inline const auto kExchangeGpus =
    ::testing::Values(ExchangeRanks{RankBackend::kNccl, 2}, ExchangeRanks{RankBackend::kNccl, 4});
inline const auto kExchangeBackends =
    ::testing::Values(ExchangeRanks{RankBackend::kThreads, 2}, ExchangeRanks{RankBackend::kThreads, 3},
                      ExchangeRanks{RankBackend::kThreads, 8}, ExchangeRanks{RankBackend::kGloo, 2});

// Exchange: made of a communicator and a LinkWatch.
template <class Exchange>
class ExchangeTest : public ::testing::TestWithParam<ExchangeRanks> {
 protected:
  void SetUp() override {
    if (GetParam().backend == RankBackend::kNccl && !has_gpus(GetParam().num_ranks)) GTEST_SKIP() << "too few GPUs";
  }
  static void on_ranks(const std::function<void(World& world, Exchange& exchange)>& body) {
    run_ranks(GetParam().backend, GetParam().num_ranks, [&](World& world) {
      LinkWatch watch(borrowed(world));
      const auto exchange = std::make_shared<Exchange>(world.communicator(group_of(world, "all")), watch);
      body(world, *exchange);
    });
  }
};

// Comes to no exchange, as a rank that hangs, until another rank gives up.
[[noreturn]] inline void wait_for_failure(World& world) {
  const auto ranks = world.communicator(group_of(world, "all"));
  while (true) {
    ranks->throw_if_rank_is_gone();
    std::this_thread::yield();
  }
}

// The same on all ranks: integers, whose sums are exact.
inline at::Tensor whole_values(at::IntArrayRef shape, std::int64_t seed, at::Device device) {
  return at::arange(seed, seed + c10::multiply_integers(shape), at::TensorOptions(device).dtype(at::kFloat))
      .remainder(251)
      .view(shape);
}

}  // namespace d9d::test
