#include "d9d/core/peer_memory/peer_memory.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/ranks.h"

namespace d9d::test::peer_memory_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class PeerMemoryOf : public ::testing::TestWithParam<RankBackend> {
 protected:
  // Each rank's block holds its rank and then 0, 1, 2, ...
  static void on_ranks(const std::function<void(Communicator& ranks, PeerMemory& memory)>& body) {
    run_ranks(GetParam(), kNumRanks, [&](World& world) {
      const auto ranks = world.communicator(group_of(world, "all"));
      const PeerMemoryResult result = open_peer_memory(ranks, kBytes);
      ASSERT_NE(result.memory, nullptr) << result.reason;
      EXPECT_EQ(result.memory->own().sum().item<std::int64_t>(), 0);
      result.memory->own().copy_(at::arange(kBytes));
      result.memory->own()[0] = ranks->rank();
      ranks->barrier();
      body(*ranks, *result.memory);
    });
  }
  static constexpr std::int64_t kNumRanks = 3;
  static constexpr std::int64_t kBytes = 100;
};
INSTANTIATE_TEST_SUITE_P(Backends, PeerMemoryOf, ::testing::Values(RankBackend::kThreads, RankBackend::kGloo),
                         [](const auto& param_info) { return std::string(to_string(param_info.param)); });

TEST_P(PeerMemoryOf, All_ranks_can_be_read_by_all) {
  on_ranks([](Communicator& /*ranks*/, PeerMemory& memory) {
    for (std::int64_t rank = 0; rank < kNumRanks; ++rank) {
      const at::Tensor first = at::full({1}, -1, at::kChar);
      memory.read(first, rank, 0);
      EXPECT_EQ(first.item<std::int64_t>(), rank);
      const at::Tensor last = at::full({2, 3}, -1, at::kShort);  // 12 bytes
      memory.read(last, rank, kBytes - 12);
      EXPECT_TRUE(at::equal(last.view({-1}).view(at::kByte), at::arange(kBytes - 12, kBytes).to(at::kByte)));
    }
  });
}

// One slot, many messages: each is read whole before the next is written.
TEST_P(PeerMemoryOf, Words_tell_when_a_message_is_there_and_when_its_place_is_free) {
  run_ranks(GetParam(), 2, [](World& world) {
    const auto ranks = world.communicator(group_of(world, "all"));
    constexpr std::int64_t kArrived = 0, kFree = 4, kSlot = 16, kNumElements = 33;
    const PeerMemoryResult result = open_peer_memory(ranks, kSlot + kNumElements * 8);
    for (std::uint32_t i = 1; i <= 500; ++i) {
      if (world.rank() == 0) {
        result.memory->wait_for(kFree, i - 1);
        result.memory->write(at::full({kNumElements}, static_cast<std::int64_t>(i), at::kLong), /*rank=*/1, kSlot);
        result.memory->raise(/*rank=*/1, kArrived, i);
      } else {
        result.memory->wait_for(kArrived, i);
        const at::Tensor message = at::empty({kNumElements}, at::kLong);
        result.memory->read(message, /*rank=*/1, kSlot);
        ASSERT_TRUE(message.eq(static_cast<std::int64_t>(i)).all().item<bool>()) << i;
        result.memory->raise(/*rank=*/0, kFree, i);
      }
    }
  });
}

TEST_P(PeerMemoryOf, A_wait_passes_after_the_numbers_have_wrapped) {
  on_ranks([](Communicator& ranks, PeerMemory& memory) {
    memory.raise(ranks.rank(), 0, 3);
    memory.wait_for(0, 0xFFFFFFFEU);
    memory.wait_for(0, 3);
  });
}

TEST_P(PeerMemoryOf, A_wait_ends_with_the_reason_when_the_group_fails) {
  std::string error;
  EXPECT_ANY_THROW(run_ranks(GetParam(), 2, [&](World& world) {
    const auto ranks = world.communicator(group_of(world, "all"));
    const PeerMemoryResult result = open_peer_memory(ranks, kBytes);
    if (world.rank() == 1) return world.abort("the toy breaks");
    try {
      result.memory->wait_for(0, 1);
    } catch (const CommunicationError& caught) {
      error = caught.what();
      throw;
    }
  }));
  EXPECT_THAT(error, HasSubstr("the toy breaks"));
}

TEST_P(PeerMemoryOf, A_rank_that_is_gone_can_still_be_read) {
  run_ranks(GetParam(), 2, [](World& world) {
    const auto ranks = world.communicator(group_of(world, "all"));
    PeerMemoryResult result = open_peer_memory(ranks, kBytes);
    result.memory->own().fill_(7);
    ranks->barrier();
    if (ranks->rank() == 1) result.memory.reset();
    ranks->barrier();
    if (ranks->rank() == 1) return;
    const at::Tensor target = at::zeros({kBytes}, at::kByte);
    result.memory->read(target, /*rank=*/1, 0);
    EXPECT_TRUE(target.eq(7).all().item<bool>());
  });
}

TEST_P(PeerMemoryOf, After_close_only_a_rank_s_own_block_is_left) {
  on_ranks([](Communicator& ranks, PeerMemory& memory) {
    memory.close();
    EXPECT_EQ(memory.own()[0].item<std::int64_t>(), ranks.rank());
    EXPECT_THAT([&] { memory.read(at::empty({1}, at::kByte), 0, 0); },
                ThrowsMessage<StateError>(HasSubstr("got one after it")));
  });
}

}  // namespace
}  // namespace d9d::test::peer_memory_test
