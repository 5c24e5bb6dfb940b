#include "d9d/core/peer_memory/peer_memory.h"

#include <cstring>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/communicator/meta/meta_backend.h"
#include "d9d/core/device/meta_memory.h"

#include "tests/support/gpu_ranks.h"
#include "tests/support/ranks.h"

namespace d9d::test::peer_memory_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class PeerMemoryOf : public ::testing::TestWithParam<RankBackend> {
 protected:
  void SetUp() override {
    if (GetParam() == RankBackend::kNccl && !has_gpus(kNumRanks)) GTEST_SKIP() << "too few GPUs";
  }
  // Each rank's block holds its rank and then 0, 1, 2, ...
  static void on_ranks(const std::function<void(Communicator& ranks, PeerMemory& memory)>& body) {
    run_ranks(GetParam(), kNumRanks, [&](World& world) {
      const auto ranks = world.communicator(group_of(world, "all"));
      const PeerMemoryResult result = open_peer_memory(ranks, kBytes, kSharedBytes);
      ASSERT_NE(result.memory, nullptr) << result.reason;
      EXPECT_EQ(result.memory->own().sum().item<std::int64_t>(), 0);
      for (std::int64_t i = 0; i < kSharedBytes; ++i) EXPECT_EQ(result.memory->shared()[i], std::byte{0});
      result.memory->own().copy_(at::arange(kBytes));
      result.memory->own()[0] = ranks->rank();
      ranks->barrier();
      body(*ranks, *result.memory);
    });
  }
  static constexpr std::int64_t kNumRanks = 2;
  static constexpr std::int64_t kBytes = 100;
  static constexpr std::int64_t kSharedBytes = 24;
};
INSTANTIATE_TEST_SUITE_P(Nccl, PeerMemoryOf, ::testing::Values(RankBackend::kNccl),
                         [](const auto& param_info) { return std::string(to_string(param_info.param)); });
INSTANTIATE_TEST_SUITE_P(Backends, PeerMemoryOf, ::testing::Values(RankBackend::kThreads, RankBackend::kGloo),
                         [](const auto& param_info) { return std::string(to_string(param_info.param)); });

TEST(MetaPeerMemory, Counts_its_bytes_and_waits_for_nobody) {
  const MetaMemory counted;
  const auto world = meta_rank(/*rank=*/1, /*num_ranks=*/4);
  const PeerMemoryResult result = open_peer_memory(world->communicator(group_of(*world, "all")), 100, 24);
  ASSERT_NE(result.memory, nullptr);
  EXPECT_EQ(counted.live_bytes(), 100);
  result.memory->shared()[23] = std::byte{1};
  result.memory->wait_for(/*word=*/0, /*value=*/1);
  result.memory->read(result.memory->own(), /*rank=*/0, /*offset=*/0);
  result.memory->close();
  EXPECT_EQ(counted.live_bytes(), 0);
}

TEST_P(PeerMemoryOf, All_ranks_can_be_read_by_all) {
  on_ranks([](Communicator& ranks, PeerMemory& memory) {
    for (std::int64_t rank = 0; rank < kNumRanks; ++rank) {
      const at::Tensor first = at::full({1}, -1, at::TensorOptions(ranks.device()).dtype(at::kChar));
      memory.read(first, rank, 0);
      EXPECT_EQ(first.item<std::int64_t>(), rank);
      const at::Tensor last = at::full({2, 3}, -1, at::TensorOptions(ranks.device()).dtype(at::kShort));  // 12 bytes
      memory.read(last, rank, kBytes - 12);
      EXPECT_TRUE(at::equal(last.cpu().view({-1}).view(at::kByte), at::arange(kBytes - 12, kBytes).to(at::kByte)));
    }
  });
}

// One slot, many messages: each is read whole before the next is written.
TEST_P(PeerMemoryOf, Words_tell_when_a_message_is_there_and_when_its_place_is_free) {
  run_ranks(GetParam(), 2, [](World& world) {
    const auto ranks = world.communicator(group_of(world, "all"));
    constexpr std::int64_t kArrived = 0, kFree = 4, kSlot = 16, kNumElements = 33;
    const PeerMemoryResult result = open_peer_memory(ranks, kSlot + kNumElements * 8, /*num_shared_bytes=*/8);
    const auto longs = at::TensorOptions(ranks->device()).dtype(at::kLong);
    for (std::uint32_t i = 1; i <= 500; ++i) {
      if (world.rank() == 0) {
        result.memory->wait_for(kFree, i - 1);
        result.memory->write(at::full({kNumElements}, static_cast<std::int64_t>(i), longs), /*rank=*/1, kSlot);
        result.memory->raise(kArrived, i);
      } else {
        result.memory->wait_for(kArrived, i);
        const at::Tensor message = at::empty({kNumElements}, longs);
        result.memory->read(message, /*rank=*/1, kSlot);
        ASSERT_TRUE(message.eq(static_cast<std::int64_t>(i)).all().item<bool>()) << i;
        result.memory->raise(kFree, i);
      }
    }
    ranks->barrier();
  });
}

TEST_P(PeerMemoryOf, A_wait_passes_after_the_numbers_have_wrapped) {
  on_ranks([](Communicator& ranks, PeerMemory& memory) {
    const std::int64_t word = 4 * ranks.rank();
    memory.raise(word, 3);
    memory.wait_for(word, 0xFFFFFFFEU);
    memory.wait_for(word, 3);
  });
}

// However many streams share a hardware queue with the one that waits, and whatever they do.
TEST_P(PeerMemoryOf, The_host_ends_a_wait_of_its_own_and_of_others) {
  on_ranks([](Communicator& ranks, PeerMemory& memory) {
    for (const std::int64_t first : {0, 8}) {
      const std::int64_t own = first + 4 * ranks.rank(), other = first + 4 - 4 * ranks.rank();
      const std::jthread host([&] { memory.raise_at_once(first == 0 ? own : other, 1); });
      memory.wait_for(own, 1);
      EXPECT_EQ(ranks.rank(), at::full({1}, ranks.rank(), at::TensorOptions(ranks.device())).item<std::int64_t>());
    }
    ranks.barrier();
  });
}

TEST_P(PeerMemoryOf, What_a_host_writes_into_shared_bytes_all_hosts_see) {
  on_ranks([](Communicator& ranks, PeerMemory& memory) {
    std::memset(memory.shared() + 8 * ranks.rank(), static_cast<int>(10 + ranks.rank()), 8);
    ranks.barrier();
    for (std::int64_t i = 0; i < 8 * kNumRanks; ++i) {
      EXPECT_EQ(memory.shared()[i], std::byte(static_cast<unsigned char>(10 + i / 8)));
    }
    ranks.barrier();
  });
}

TEST_P(PeerMemoryOf, A_wait_ends_with_the_reason_when_the_group_fails) {
  if (GetParam() == RankBackend::kNccl) GTEST_SKIP() << "a stream waits, not a host";
  std::string error;
  EXPECT_ANY_THROW(run_ranks(GetParam(), 2, [&](World& world) {
    const auto ranks = world.communicator(group_of(world, "all"));
    const PeerMemoryResult result = open_peer_memory(ranks, kBytes, kSharedBytes);
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
    const at::Tensor target = at::zeros({kBytes}, at::TensorOptions(ranks->device()).dtype(at::kByte));
    result.memory->read(target, /*rank=*/1, 0);
    EXPECT_TRUE(target.eq(7).all().item<bool>());
  });
}

TEST_P(PeerMemoryOf, After_close_only_a_rank_s_own_block_is_left) {
  on_ranks([](Communicator& ranks, PeerMemory& memory) {
    memory.close();
    EXPECT_EQ(memory.own()[0].item<std::int64_t>(), ranks.rank());
    EXPECT_THAT([&] { memory.read(at::empty({1}, at::TensorOptions(ranks.device()).dtype(at::kByte)), 0, 0); },
                ThrowsMessage<StateError>(HasSubstr("got one after it")));
  });
}

TEST_P(PeerMemoryOf, Ranks_leave_one_after_the_other) {
  on_ranks([](Communicator& ranks, PeerMemory& memory) {
    for (std::int64_t rank = 0; rank < kNumRanks; ++rank) {
      if (ranks.rank() == rank) {
        memory.leave();
        EXPECT_EQ(memory.own()[0].item<std::int64_t>(), rank);
        EXPECT_THAT([&] { memory.read(at::empty({1}, at::TensorOptions(ranks.device()).dtype(at::kByte)), 0, 0); },
                    ThrowsMessage<StateError>(HasSubstr("got one after it")));
      }
      ranks.barrier();
    }
  });
}

}  // namespace
}  // namespace d9d::test::peer_memory_test
