#include "d9d/parallelism/context/peer_block_exchange.h"

#include <random>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/parallelism/exchange_ranks.h"

namespace d9d::test::peer_block_exchange_test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::ThrowsMessage;
using Tensors = PeerBlockExchange::Tensors;

class PeerBlockExchangeOf : public ExchangeTest<PeerBlockExchange> {};
INSTANTIATE_TEST_SUITE_P(Nccl, PeerBlockExchangeOf, kExchangeGpus, name_of_ranks);
INSTANTIATE_TEST_SUITE_P(Backends, PeerBlockExchangeOf, kExchangeBackends, name_of_ranks);

// Two tensors of each rank, of as many positions.
Tensors tensors_of(std::int64_t rank, std::int64_t size, std::int64_t seed, at::Device device) {
  return {whole_values({2, size}, seed + 7 * rank, device), whole_values({3, size, 3}, seed + 11 * rank, device)};
}

// The positions of `owner` to which `writer` contributes: all, a part, or none.
FlatRange range_of(std::int64_t writer, std::int64_t owner, std::int64_t size) {
  if (writer == owner) return {0, size};
  const std::int64_t begin = (3 * writer + owner) % (size + 1);
  return {begin, begin + (writer + 2 * owner) % (size - begin + 1)};
}

PeerBlockExchange::RangeOf all_of(std::int64_t size) {
  return [size](std::int64_t, std::int64_t) { return FlatRange{0, size}; };
}

// Visits and sums of changing sizes in any order, of which some need larger memory or meet memory that was given back:
// slots are used again and words set back.
TEST_P(PeerBlockExchangeOf, Shows_all_blocks_and_sums_contributions) {
  on_ranks([](World& world, PeerBlockExchange& exchange) {
    std::mt19937 draw(5);  // NOLINT: the same on all ranks
    const std::int64_t num_ranks = world.size(), here = world.rank();
    for (std::int64_t i = 0; i < 300; ++i) {
      const std::int64_t size = 1 + static_cast<std::int64_t>(draw() % 300);
      const std::int64_t kind = static_cast<std::int64_t>(draw() % 3);
      if (draw() % 16 == 0) exchange.close();
      const Tensors own = tensors_of(here, size, i, world.device());
      ASSERT_TRUE(exchange.fits(own)) << exchange.reason();
      std::vector<std::int64_t> seen;
      at::Tensor is_right = at::ones({}, at::TensorOptions(world.device()).dtype(at::kBool));
      const auto see = [&](std::int64_t rank, const Tensors& theirs) {
        seen.push_back(rank);
        const Tensors expected = tensors_of(rank, size, i, world.device());
        is_right.logical_and_((theirs[0] == expected[0]).all()).logical_and_((theirs[1] == expected[1]).all());
      };
      const auto range = [&](std::int64_t writer, std::int64_t owner) { return range_of(writer, owner, size); };
      const auto part = [&](const at::Tensor& x, std::int64_t writer, std::int64_t owner) {
        return x.narrow(1, range(writer, owner).begin, range(writer, owner).numel());
      };
      const auto contributions = [&](std::int64_t owner, const Tensors& theirs) {
        return Tensors{part(theirs[0], here, owner) + here, part(theirs[1], here, owner) * (here + 1)};
      };
      const auto expect_sums = [&](const Tensors& sum) {
        const Tensors expected = {at::zeros_like(own[0]), at::zeros_like(own[1])};
        for (std::int64_t writer = 0; writer < num_ranks; ++writer) {
          part(expected[0], writer, here) += part(own[0], writer, here) + writer;
          part(expected[1], writer, here) += part(own[1], writer, here) * (writer + 1);
        }
        ASSERT_TRUE(at::equal(sum[0], expected[0]) && at::equal(sum[1], expected[1])) << i;
      };
      if (kind == 0) {
        expect_sums(exchange.sum(
            range, [&](std::int64_t rank) { return contributions(rank, tensors_of(rank, size, i, world.device())); }));
        continue;
      }
      if (kind == 1) {
        expect_sums(exchange.visit_and_sum(own, range, [&](std::int64_t rank, const Tensors& theirs) {
          see(rank, theirs);
          return contributions(rank, theirs);
        }));
      } else {
        exchange.visit(own, see);
      }
      ASSERT_TRUE(is_right.item<bool>()) << i;
      std::vector<std::int64_t> expected;
      for (std::int64_t other = 0; other < num_ranks; ++other) {
        expected.push_back((here + num_ranks - other) % num_ranks);
      }
      ASSERT_EQ(seen, expected);
    }
  });
}

TEST_P(PeerBlockExchangeOf, Sums_in_float) {
  on_ranks([](World& world, PeerBlockExchange& exchange) {
    const Tensors own = {at::zeros({1, 4}, at::TensorOptions(world.device()).dtype(at::kBFloat16))};
    ASSERT_TRUE(exchange.fits(own));
    // 256 has no neighbour nearer than 2: sums of 256 and 1 in bfloat16 stay 256.
    const Tensors sum = exchange.visit_and_sum(own, all_of(4), [&](std::int64_t, const Tensors& theirs) {
      return Tensors{theirs[0] + (world.rank() == 0 ? 256 : 1)};
    });
    const float exact = 255.0F + static_cast<float>(world.size());
    EXPECT_EQ(sum[0][0][0].item<float>(), at::scalar_tensor(exact, at::kBFloat16).item<float>());
  });
}

TEST_P(PeerBlockExchangeOf, Does_not_wait_for_a_rank_that_has_failed) {
  if (GetParam().backend == RankBackend::kNccl) GTEST_SKIP() << "a rank that fails ends its process";
  EXPECT_THAT(
      [] {
        on_ranks([](World& world, PeerBlockExchange& exchange) {
          const Tensors own = tensors_of(world.rank(), 4, 0, world.device());
          ASSERT_TRUE(exchange.fits(own));
          if (world.rank() == 1) throw ConfigError("rank 1 throws");
          (void)exchange.visit_and_sum(own, all_of(4), [](std::int64_t, const Tensors& theirs) { return theirs; });
        });
      },
      ThrowsMessage<ConfigError>(HasSubstr("rank 1 throws")));
}

TEST_P(PeerBlockExchangeOf, Ends_the_job_if_a_rank_does_not_come) {
  if (GetParam().backend == RankBackend::kNccl) GTEST_SKIP() << "a rank that fails ends its process";
  EXPECT_THAT(
      [] {
        on_ranks([](World& world, PeerBlockExchange& exchange) {
          const Tensors own = tensors_of(world.rank(), 4, 0, world.device());
          ASSERT_TRUE(exchange.fits(own));
          world.set_timeout(std::chrono::milliseconds(200));
          if (world.rank() == 1) wait_for_failure(world);
          (void)exchange.visit_and_sum(own, all_of(4), [](std::int64_t, const Tensors& theirs) { return theirs; });
        });
      },
      ThrowsMessage<CommunicationError>(MatchesRegex(".*has waited 0.2 s .* ranks? (.*, )?1[,.].*")));
}

}  // namespace
}  // namespace d9d::test::peer_block_exchange_test
