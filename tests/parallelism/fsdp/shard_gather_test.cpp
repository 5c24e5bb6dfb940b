#include "d9d/parallelism/fsdp/shard_gather.h"

#include <algorithm>
#include <chrono>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/offload/offload.h"

#include "tests/parallelism/exchange_ways.h"
#include "tests/parallelism/one_rank.h"

namespace d9d::test::shard_gather_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kSlice = 5;  // elements of each of two slices, fp64

struct Slices {
  Slices(World& world, ExchangeMethod method)
      : ranks(world.communicator(group_of(world, "all"))),
        gather(make_shard_gather(method, ranks, 2 * 256, std::make_shared<LinkWatch>(borrowed(world)))) {
    for (at::Tensor& slice : own) slice = gather->allocate(kSlice * 8).view(at::kDouble);
  }
  void write(double value) const {  // without LibTorch, so that a sanitizer sees the writes
    std::fill_n(own[0].mutable_data_ptr<double>(), kSlice, value + static_cast<double>(ranks->rank()));
    std::fill_n(own[1].mutable_data_ptr<double>(), kSlice, -value);
  }
  // Checks the gathered values after every rank has written `value`.
  void expect(double value) const {
    const at::Tensor full = at::full({ranks->size() * kSlice}, std::nan(""), at::kDouble);
    gather->gather(full, own[0]);
    EXPECT_TRUE(at::equal(full.view({-1, kSlice}).select(1, 2), at::arange(ranks->size(), at::kDouble) + value));
    gather->gather(full, own[1]);
    EXPECT_TRUE(full.eq(-value).all().item<bool>());
  }

  std::shared_ptr<Communicator> ranks;
  std::shared_ptr<ShardGather> gather;
  std::array<at::Tensor, 2> own;
};

class ShardGatherBy : public ::testing::TestWithParam<ExchangeWay> {
 protected:
  static void on_ranks(std::int64_t num_ranks, const std::function<void(const Slices&)>& body) {
    run_ranks(GetParam().first, num_ranks, [&](World& world) { body(Slices(world, GetParam().second)); });
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, ShardGatherBy, kExchangeWays, name_of_way);

TEST_P(ShardGatherBy, What_ranks_wrote_before_begin_is_what_all_gather) {
  on_ranks(4, [](const Slices& slices) {
    for (int step = 1; step <= 20; ++step) {
      slices.write(step);
      slices.gather->begin();
      slices.expect(step);
      slices.expect(step);
      slices.gather->end();
    }
  });
}

TEST_P(ShardGatherBy, Between_steps_a_gather_needs_no_begin) {
  on_ranks(3, [](const Slices& slices) {
    for (int i = 1; i <= 5; ++i) {
      slices.write(i);
      slices.expect(i);
    }
  });
}

TEST_P(ShardGatherBy, An_abandoned_step_is_followed_by_others) {
  on_ranks(3, [](const Slices& slices) {
    slices.write(1);
    slices.gather->begin();
    slices.gather->abandon();
    slices.write(2);
    slices.expect(2);
    slices.gather->begin();
    slices.expect(2);
    slices.gather->end();
  });
}

TEST_P(ShardGatherBy, Slices_can_be_offloaded_between_steps) {
  on_ranks(3, [](const Slices& slices) {
    for (const bool closes : {true, false}) {
      slices.write(3);
      slices.gather->begin();
      slices.expect(3);
      slices.gather->end();
      if (closes) slices.gather->close();
      OffloadedTensors asleep = offload_storages({slices.own[0].storage(), slices.own[1].storage()});
      onload_tensors(asleep);
      slices.expect(3);
      slices.gather->begin();
      slices.expect(3);
      slices.gather->end();
    }
  });
}

TEST(CopyEngineGather, A_rank_that_does_not_begin_or_end_a_step_is_named) {
  for (const bool begins : {false, true}) {
    run_ranks(RankBackend::kThreads, 2, [&](World& world) {
      const Slices slices(world, ExchangeMethod::kCopyEngine);
      if (begins) slices.gather->begin();
      slices.ranks->barrier();
      world.set_timeout(std::chrono::milliseconds(300));
      if (world.rank() == 1) return;
      try {
        begins ? slices.gather->end() : slices.gather->begin();
        ADD_FAILURE() << "did not wait for rank 1";
      } catch (const CommunicationError& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr("program has returned")));
      }
    });
  }
}

TEST(CopyEngineGather, Is_not_chosen_by_itself_on_CPUs) {
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    EXPECT_EQ(Slices(world, ExchangeMethod::kAuto).gather->description(), "by all_gather: its ranks are on CPUs");
    EXPECT_EQ(Slices(world, ExchangeMethod::kCopyEngine).gather->description(),
              "by copies from the memory of 1 peers: all ranks are on one machine");
  });
}

}  // namespace
}  // namespace d9d::test::shard_gather_test
