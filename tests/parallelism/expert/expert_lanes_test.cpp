// Exchanges of experts' tokens in two lanes, as of a forward and a backward that run at the same time.
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/blocks/moe/token_dispatcher.h"
#include "d9d/parallelism/expert/expert_parallel_dispatcher.h"

#include "tests/parallelism/one_rank.h"

namespace d9d::test::expert_lanes_test {
namespace {

constexpr std::int64_t kNumExperts = 4, kNumTokens = 6, kWidth = 3, kTopK = 2;

// A microbatch of all ranks.
struct Tokens {
  explicit Tokens(std::int64_t seed)
      : x(values({kNumTokens, kWidth}, seed)),
        expert_ids((at::arange(kNumTokens * kTopK).view({kNumTokens, kTopK}) * 3 + seed).remainder(kNumExperts)),
        probs(values({kNumTokens, kTopK}, seed + 10)) {}
  at::Tensor x, expert_ids, probs;
};

// Experts that round alike wherever a row lies.
at::Tensor outputs_of(const TokenDispatcher& dispatcher, const at::Tensor& x, const at::Tensor& ids,
                      const at::Tensor& probs) {
  const auto dispatched = dispatcher.dispatch(x, ids, probs);
  return dispatched->combine(at::sin(dispatched->rows) * dispatched->probs.view({-1, 1}));
}

struct Gradients {
  at::Tensor y, x;
};

Gradients on_one_rank(const Tokens& tokens) {
  const at::Tensor x = tokens.x.clone().set_requires_grad(true);
  const at::Tensor y = outputs_of(LocalTokenDispatcher(kNumExperts), x, tokens.expert_ids, tokens.probs);
  y.square().sum().backward();
  return {.y = y.detach(), .x = x.grad()};
}

// Each forward's backward comes when the other's forward has run.
TEST(ExpertLanes, Give_the_bits_of_one_rank) {
  const std::vector<Tokens> microbatches = {Tokens(1), Tokens(2)};
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const ExpertParallelTokenDispatcher dispatcher(kNumExperts, mesh_of(world, "ep"));
    std::vector<at::Tensor> xs, ys;
    for (std::int64_t lane = 0; lane < 2; ++lane) {
      const Tokens& tokens = microbatches[static_cast<std::size_t>(lane)];
      world.set_lane(lane);
      xs.push_back(part(tokens.x, 0, world).clone().set_requires_grad(true));
      ys.push_back(outputs_of(dispatcher, xs.back(), part(tokens.expert_ids, 0, world), part(tokens.probs, 0, world)));
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const Gradients expected = on_one_rank(microbatches[i]);
      ys[i].square().sum().backward();
      EXPECT_TRUE(at::equal(ys[i], part(expected.y, 0, world))) << "microbatch " << i;
      EXPECT_TRUE(at::equal(xs[i].grad(), part(expected.x, 0, world))) << "microbatch " << i;
    }
  });
}

// The lane is 0 again when the second backward runs: it exchanges where its forward did. On one communicator the ranks,
// which run the two backwards in opposite orders, would wait for each other or mix their rows.
TEST(ExpertLanes, Do_not_wait_for_each_other) {
  const std::vector<Tokens> microbatches = {Tokens(1), Tokens(2)};
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const ExpertParallelTokenDispatcher dispatcher(kNumExperts, mesh_of(world, "ep"));
    std::vector<at::Tensor> xs, ys;
    for (std::int64_t lane = 0; lane < 2; ++lane) {
      const Tokens& tokens = microbatches[static_cast<std::size_t>(lane)];
      world.set_lane(lane);
      xs.push_back(part(tokens.x, 0, world).clone().set_requires_grad(true));
      ys.push_back(outputs_of(dispatcher, xs.back(), part(tokens.expert_ids, 0, world), part(tokens.probs, 0, world)));
    }
    world.set_lane(0);
    const auto first = static_cast<std::size_t>(world.rank());
    std::thread other([&] { ys[1 - first].square().sum().backward(); });
    // The other backward of this rank ends only if the other rank's first one does not wait for ours.
    if (world.rank() == 0) other.join();
    ys[first].square().sum().backward();
    if (world.rank() == 1) other.join();
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(at::equal(xs[i].grad(), part(on_one_rank(microbatches[i]).x, 0, world))) << "microbatch " << i;
    }
  });
}

TEST(ExpertLanes, Have_communicators_of_their_own) {
  run_ranks(RankBackend::kThreads, 2, [](World& world) {
    const DeviceMesh ranks = mesh_of(world, "ep");
    const auto first = ranks.lane_communicator();
    EXPECT_EQ(first, ranks.communicator());
    world.set_lane(1);
    const auto second = ranks.lane_communicator();
    EXPECT_NE(first, second);
    EXPECT_EQ(second->group().lane, 1);
    EXPECT_EQ(ranks.communicator(), first);
    EXPECT_EQ(second, ranks.lane_communicator());
  });
}

}  // namespace
}  // namespace d9d::test::expert_lanes_test
