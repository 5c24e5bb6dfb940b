#include "d9d/core/launch/thread_ranks.h"

#include <latch>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/communicator/peer_failed_error.h"

namespace d9d::thread_ranks_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::shared_ptr<Communicator> everybody(const std::shared_ptr<World>& world) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = 0; rank < world->size(); ++rank) ranks.push_back(rank);
  return world->communicator({.name = "all", .ranks = ranks, .index = world->rank()});
}

TEST(ThreadRanks, Throw_the_first_failure_with_its_rank_while_others_wait) {
  EXPECT_THAT(
      [] {
        run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
          D9D_CHECK(world->rank() != 2, IoError, "cannot read tokens.bin");
          everybody(world)->barrier();
        });
      },
      ThrowsMessage<IoError>("rank 2: cannot read tokens.bin"));
}

TEST(ThreadRanks, Throw_the_cause_though_who_was_told_of_it_ended_first) {
  EXPECT_THAT(
      [] {
        run_thread_ranks(3, [](const std::shared_ptr<World>& world) {
          if (world->rank() == 2) throw PeerFailedError("rank 0 failed");
          EXPECT_THROW(everybody(world)->barrier(), CommunicationError);  // because rank 2 has ended
          if (world->rank() == 1) throw CommunicationError("rank 2 failed");
          throw IoError("cannot read tokens.bin");
        });
      },
      ThrowsMessage<IoError>("rank 0: cannot read tokens.bin"));
}

TEST(ThreadRanks, Name_who_called_something_else) {
  EXPECT_THAT(
      [] {
        run_thread_ranks(3, [](const std::shared_ptr<World>& world) {
          const auto all = everybody(world);
          all->barrier();
          const at::Tensor x = at::zeros({world->rank() == 1 ? 3 : 4});
          all->all_reduce(x, ReduceOp::kSum).wait();
        });
      },
      ThrowsMessage<CommunicationError>(AllOf(HasSubstr("rank 0 at operation 2 all_reduce(sum, Float [4])"),
                                              HasSubstr("rank 1 at operation 2 all_reduce(sum, Float [3])"))));
}

TEST(ThreadRanks, Name_who_did_not_come) {
  std::latch others_have_failed(2);
  EXPECT_THAT(
      [&] {
        run_thread_ranks(3, [&](const std::shared_ptr<World>& world) {
          world->set_timeout(std::chrono::milliseconds(100));
          const auto all = everybody(world);
          all->barrier();
          if (world->rank() == 1) return others_have_failed.wait();  // skips a collective
          const auto count_down = [&](const void*) { others_have_failed.count_down(); };
          const std::unique_ptr<const World, decltype(count_down)> at_end(world.get(), count_down);
          all->barrier();
        });
      },
      ThrowsMessage<CommunicationError>(
          AllOf(HasSubstr("waited 0.1 s in group 'all' for: rank 1 at operation 1 barrier()"))));
}

TEST(ThreadRanks, Name_who_has_returned_while_others_wait_for_it) {
  EXPECT_THAT(
      [] {
        run_thread_ranks(3, [](const std::shared_ptr<World>& world) {
          const auto all = everybody(world);
          all->barrier();
          if (world->rank() != 1) all->barrier();
        });
      },
      ThrowsMessage<CommunicationError>(
          AllOf(HasSubstr("for rank 1 at operation 1 barrier(), whose program has returned"),
                HasSubstr("the same collectives in the same order"))));
  EXPECT_THAT(
      [] {
        run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
          if (world->rank() == 0) everybody(world)->barrier();  // of a group that rank 1 never makes
        });
      },
      ThrowsMessage<CommunicationError>(HasSubstr("for rank 1 (no operation yet), whose program has returned")));
}

TEST(ThreadRanks, Name_the_sender_that_has_returned_but_deliver_what_it_sent) {
  const auto run = [](int num_received) {
    run_thread_ranks(2, [=](const std::shared_ptr<World>& world) {
      const auto all = everybody(world);
      const at::Tensor x = at::full({1}, 7.0);
      if (world->rank() == 1) return (void)all->exchange({{PointToPoint::Direction::kSend, x, 0}});
      for (int i = 0; i < num_received; ++i) {
        const at::Tensor y = at::zeros({1});
        all->exchange({{PointToPoint::Direction::kReceive, y, 1}}).wait();
        EXPECT_EQ(y.item<double>(), 7.0);
      }
    });
  };
  EXPECT_NO_THROW(run(1));
  EXPECT_THAT([&] { run(2); }, ThrowsMessage<CommunicationError>(
                                   HasSubstr("for receive(Float [1]) from rank 1, whose program has returned")));
}

TEST(ThreadRanks, Do_not_end_the_job_by_exit) {
  const auto run = [] {
    run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
      if (world->rank() == 1) std::exit(0);  // lint: allow(process-exit): the mistake
      everybody(world)->barrier();
    });
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(1), "the program called exit\\(\\) while 2 ranks were running");
}

TEST(ThreadRanks, End_the_process_when_a_rank_is_stuck) {
  const auto run = [] {
    std::mutex never;
    never.lock();
    run_thread_ranks(
        2,
        [&](const std::shared_ptr<World>& world) {
          if (world->rank() == 1) never.lock();
          throw IoError("disk full");
        },
        std::chrono::milliseconds(50));
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(1), "error: rank 0: disk full");
}

}  // namespace
}  // namespace d9d::thread_ranks_test
