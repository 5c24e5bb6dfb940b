#include "d9d/parallelism/tensor/peer_row_exchange.h"

#include <random>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/kernels/linear/linear.h"

#include "tests/parallelism/exchange_ranks.h"

namespace d9d::test::peer_row_exchange_test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::ThrowsMessage;

class PeerRowExchangeOf : public ExchangeTest<PeerRowExchange> {};
INSTANTIATE_TEST_SUITE_P(Nccl, PeerRowExchangeOf, kExchangeGpus, name_of_ranks);
INSTANTIATE_TEST_SUITE_P(Backends, PeerRowExchangeOf, kExchangeBackends, name_of_ranks);

// Many exchanges of changing sizes, of which some need larger memory or meet memory that was given back: slots are used
// again and flags set back.
TEST_P(PeerRowExchangeOf, Gathers_shards_and_scatters_sums) {
  on_ranks([](World& world, PeerRowExchange& exchange) {
    std::mt19937 draw(3);  // NOLINT: the same on all ranks
    for (std::int64_t i = 0; i < 300; ++i) {
      const std::int64_t batch = 1 + static_cast<std::int64_t>(draw() % 3),
                         width = 1 + static_cast<std::int64_t>(draw() % 40);
      const std::int64_t positions = world.size() * (1 + static_cast<std::int64_t>(draw() % 5));
      const bool gathers = draw() % 2 == 0;
      if (draw() % 16 == 0) exchange.close();
      const at::Tensor whole = whole_values({batch, positions, width}, i, world.device());
      const at::Tensor matrix = whole.view({-1, width});
      ASSERT_TRUE(exchange.fits(whole.numel() / world.size(), whole.scalar_type())) << exchange.reason();
      if (gathers) {
        std::int64_t num_rows = 0;
        const at::Tensor found =
            exchange.gather(part(whole, 1, world), [&](std::int64_t first, const at::Tensor& rows) {
              ASSERT_TRUE(at::equal(rows, matrix.narrow(0, first, rows.size(0)))) << i;
              num_rows += rows.size(0);
            });
        ASSERT_TRUE(at::equal(found, whole)) << i;
        ASSERT_EQ(num_rows, batch * positions);
        continue;
      }
      std::int64_t num_rows = 0;
      bool has_met = false;
      const auto write = [&](std::int64_t first, const at::Tensor& rows) {
        at::Tensor(rows).copy_(matrix.narrow(0, first, rows.size(0)) + world.rank());
        num_rows += rows.size(0);
      };
      const at::Tensor sum = exchange.scatter({whole.sizes().vec(), whole.options()}, write,
                                              [&] { has_met = num_rows == batch * positions; });
      const double ranks = static_cast<double>(world.size());
      ASSERT_TRUE(at::equal(sum, part(whole, 1, world) * ranks + ranks * (ranks - 1) / 2)) << i;
      ASSERT_TRUE(has_met);
    }
  });
}

// Two linears with biases and an adapter at the entry, one with an adapter at the exit.
TEST_P(PeerRowExchangeOf, Linears_at_edges_equal_one_rank) {
  on_ranks([](World& world, PeerRowExchange& exchange) {
    const auto on_device = [&](const at::Tensor& tensor) {
      return tensor.to(world.device()).clone().detach().requires_grad_();
    };
    const std::int64_t ranks = world.size(), positions = 3 * ranks;
    const at::Tensor x = values({2, positions, 16}, 1), a = values({8, 16}, 6), grad = values({2, positions, 16}, 9);
    const at::Tensor w1 = values({8 * ranks, 16}, 2), w2 = values({16 * ranks, 16}, 3), b1 = values({8 * ranks}, 4);
    const at::Tensor b2 = values({16 * ranks}, 5), b = values({8 * ranks, 8}, 7), w3 = values({16, 8 * ranks}, 8);
    const at::Tensor a3 = values({4, 8 * ranks}, 10), b3 = values({16, 4}, 11);
    const auto forward = [&](std::vector<at::Tensor> all, kernels::RowExchangePtr edge) {
      const auto first = kernels::linears(all[0], {all[1], all[2]}, {all[3], all[4]},
                                          {{.a = all[5], .b = all[6], .scale = 0.5}}, {.input = edge});
      const at::Tensor middle = at::tanh(first[0]) + at::tanh(first[1]).narrow(-1, 0, first[0].size(-1));
      return kernels::linears(middle, {all[7]}, {}, {{.a = all[8], .b = all[9], .scale = 0.25}}, {.output = edge})[0];
    };
    std::vector<at::Tensor> one;
    for (const at::Tensor& each : {x, w1, w2, b1, b2, a, b, w3, a3, b3}) one.push_back(on_device(each));
    std::vector<at::Tensor> parts;
    const std::vector<int> dims = {1, 0, 0, 0, 0, -1, 0, 1, 1, -1};
    for (std::size_t i = 0; i < one.size(); ++i) {
      const at::Tensor whole = one[i].detach();
      parts.push_back((dims[i] < 0 ? whole : part(whole, dims[i], world)).clone().requires_grad_());
    }
    // One rank: the same sums, rank by rank.
    at::Tensor expected;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<at::Tensor> of_rank;
      for (std::size_t i = 0; i < one.size(); ++i) {
        of_rank.push_back(dims[i] < 0 || i == 0 ? one[i]
                                                : one[i].chunk(ranks, dims[i])[static_cast<std::size_t>(rank)]);
      }
      const at::Tensor summand = forward(of_rank, {});
      expected = expected.defined() ? expected + summand : summand;
    }
    ASSERT_TRUE(exchange.fits(parts[0].numel(), at::kDouble)) << exchange.reason();
    const at::Tensor output = forward(parts, kernels::RowExchangePtr(std::shared_ptr<void>(), &exchange));
    const at::Tensor of_output = grad.to(world.device());
    expected.backward(of_output);
    output.backward(part(of_output, 1, world));
    expect_close("output", output, part(expected, 1, world), tolerance("fp64"));
    for (std::size_t i = 0; i < one.size(); ++i) {
      at::Tensor found = parts[i].grad().clone();
      if (dims[i] < 0) world.communicator(group_of(world, "all"))->all_reduce(found, ReduceOp::kSum).wait();
      const at::Tensor whole = one[i].grad();
      expect_close(std::to_string(i), found, dims[i] < 0 ? whole : part(whole, dims[i], world), tolerance("fp64"),
                   largest_magnitude(whole));
    }
  });
}

TEST_P(PeerRowExchangeOf, Counts_how_often_memory_was_given_back) {
  on_ranks([](World&, PeerRowExchange& exchange) {
    const auto closings_after = [&](std::int64_t num_elements) {
      EXPECT_TRUE(exchange.fits(num_elements, at::kFloat));
      return exchange.num_closings();
    };
    EXPECT_EQ(closings_after(100), 0);
    EXPECT_EQ(closings_after(50), 0);
    EXPECT_EQ(closings_after(1000), 1);  // for larger memory
    exchange.close();
    exchange.close();
    EXPECT_EQ(exchange.num_closings(), 2);
    EXPECT_EQ(closings_after(1000), 2);
  });
}

TEST_P(PeerRowExchangeOf, Does_not_wait_for_a_rank_that_has_failed) {
  if (GetParam().backend == RankBackend::kNccl) GTEST_SKIP() << "a rank that fails ends its process";
  EXPECT_THAT(
      [] {
        on_ranks([](World& world, PeerRowExchange& exchange) {
          const at::Tensor whole = whole_values({1, 2 * world.size(), 4}, 0, world.device());
          ASSERT_TRUE(exchange.fits(whole.numel() / world.size(), whole.scalar_type()));
          if (world.rank() == 1) throw ConfigError("rank 1 throws");
          const at::Tensor found = exchange.gather(part(whole, 1, world), [](std::int64_t, const at::Tensor&) {});
          world.communicator(group_of(world, "all"))->all_reduce(found, ReduceOp::kSum).wait();
          (void)found.sum().item<float>();
          world.throw_if_failed();
        });
      },
      ThrowsMessage<std::exception>(HasSubstr("rank 1")));
}

TEST_P(PeerRowExchangeOf, Ends_the_job_if_a_rank_does_not_come) {
  if (GetParam().num_ranks != 3) GTEST_SKIP() << "waits for seconds; PeerBlockExchange has the others";
  EXPECT_THAT(
      [] {
        on_ranks([](World& world, PeerRowExchange& exchange) {
          const at::Tensor whole = whole_values({1, 2 * world.size(), 4}, 0, world.device());
          ASSERT_TRUE(exchange.fits(whole.numel() / world.size(), whole.scalar_type()));
          world.set_timeout(std::chrono::milliseconds(200));
          if (world.rank() == 1) wait_for_failure(world);
          (void)exchange.gather(part(whole, 1, world), [](std::int64_t, const at::Tensor&) {});
        });
      },
      ThrowsMessage<CommunicationError>(MatchesRegex(".*has waited 0.2 s .* ranks? (.*, )?1[,.].*")));
}

}  // namespace
}  // namespace d9d::test::peer_row_exchange_test
