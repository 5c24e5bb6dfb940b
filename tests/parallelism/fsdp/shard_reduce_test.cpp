#include "d9d/parallelism/fsdp/shard_reduce.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/parallelism/exchange_ways.h"
#include "tests/parallelism/one_rank.h"

namespace d9d::test::shard_reduce_test {
namespace {

constexpr std::int64_t kSlice = 5;  // elements, fp64

// Sums two full gradients alternately, as units do.
struct Sums {
  Sums(World& world, ExchangeMethod method)
      : ranks(world.communicator(group_of(world, "all"))),
        reduce(method, ranks, std::make_shared<LinkWatch>(borrowed(world))),
        sum(at::zeros({kSlice}, at::kDouble)) {
    open();
  }
  void open() {
    const std::int64_t numel = ranks->size() * kSlice;
    const at::Tensor memory = reduce.allocate(2 * numel * 8).view(at::kDouble);
    full = {memory.narrow(0, 0, numel), memory.narrow(0, numel, numel)};
  }
  // Writes without LibTorch, so that a sanitizer sees the writes: element i of rank r is value * (r + 1) + i.
  void write(std::size_t index, double value) const {
    double* const data = full.at(index).mutable_data_ptr<double>();
    for (std::int64_t i = 0; i < full[index].numel(); ++i) {
      data[i] = value * static_cast<double>(ranks->rank() + 1) + static_cast<double>(i);
    }
  }
  // The sum that write(value) leads to.
  [[nodiscard]] at::Tensor expected(double value) const {
    const auto num_ranks = static_cast<double>(ranks->size());
    const at::Tensor own = at::arange(kSlice, at::kDouble) + static_cast<double>(ranks->rank() * kSlice);
    return own * num_ranks + value * num_ranks * (num_ranks + 1) / 2;
  }

  std::shared_ptr<Communicator> ranks;
  ShardReduce reduce;
  at::Tensor sum;
  std::array<at::Tensor, 2> full;
};

class ShardReduceBy : public ::testing::TestWithParam<ExchangeWay> {
 protected:
  static void on_ranks(std::int64_t num_ranks, const std::function<void(Sums&)>& body) {
    run_ranks(GetParam().first, num_ranks, [&](World& world) {
      Sums sums(world, GetParam().second);
      body(sums);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, ShardReduceBy, kExchangeWays, name_of_way);

TEST_P(ShardReduceBy, Sums_what_all_ranks_wrote_and_lets_them_write_again) {
  for (const std::int64_t num_ranks : {2, 4}) {
    on_ranks(num_ranks, [](Sums& sums) {
      for (int step = 1; step <= 20; ++step) {
        const std::size_t index = step % 2;
        sums.write(index, step);
        sums.reduce.reduce(sums.sum, sums.full[index], /*adds=*/false);
        EXPECT_TRUE(at::allclose(sums.sum, sums.expected(step))) << sums.sum;
      }
    });
  }
}

TEST_P(ShardReduceBy, Adds_to_a_sum_of_former_microbatches) {
  on_ranks(3, [](Sums& sums) {
    sums.write(0, 1.0);
    sums.reduce.reduce(sums.sum, sums.full[0], /*adds=*/false);
    sums.write(0, 10.0);
    sums.reduce.reduce(sums.sum, sums.full[0], /*adds=*/true);
    EXPECT_TRUE(at::allclose(sums.sum, sums.expected(1.0) + sums.expected(10.0))) << sums.sum;
  });
}

TEST_P(ShardReduceBy, Sums_gradients_that_lie_elsewhere_too) {
  on_ranks(3, [](Sums& sums) {
    sums.full[0] = at::empty({3 * kSlice}, at::kDouble);
    sums.write(0, 2.0);
    sums.reduce.reduce(sums.sum, sums.full[0], /*adds=*/false);
    EXPECT_TRUE(at::allclose(sums.sum, sums.expected(2.0)));
  });
}

TEST_P(ShardReduceBy, Goes_on_after_close) {
  on_ranks(2, [](Sums& sums) {
    for (int i = 1; i <= 3; ++i) {
      sums.write(1, i);
      sums.reduce.reduce(sums.sum, sums.full[1], /*adds=*/false);
      EXPECT_TRUE(at::allclose(sums.sum, sums.expected(i)));
      sums.full = {};
      sums.reduce.close();
      sums.open();
    }
  });
}

TEST(ShardReduce, By_copies_gives_ranks_the_same_bits_whoever_comes_first) {
  run_ranks(RankBackend::kThreads, 4, [](World& world) {
    Sums sums(world, ExchangeMethod::kCopyEngine);
    const at::Tensor parts = at::linspace(0.1, 7.7, 4 * kSlice, at::kDouble).view({4, kSlice}).exp();
    sums.full[0].copy_(parts.select(0, world.rank()).repeat({4}));
    sums.reduce.reduce(sums.sum, sums.full[0], /*adds=*/false);
    EXPECT_TRUE(at::equal(sums.sum, ((parts[0] + parts[1]) + parts[2]) + parts[3]));
  });
}

TEST(ShardReduce, Copies_are_not_chosen_by_themselves_on_CPUs) {
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    EXPECT_EQ(Sums(world, ExchangeMethod::kAuto).reduce.description(), "by reduce_scatter: its ranks are on CPUs");
    EXPECT_EQ(Sums(world, ExchangeMethod::kCopyEngine).reduce.description(),
              "by copies from the memory of 1 peers: all ranks are on one machine");
  });
}

}  // namespace
}  // namespace d9d::test::shard_reduce_test
