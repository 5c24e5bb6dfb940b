// The errors that ranks get when communication fails, on all backends that need no device.
#include <chrono>
#include <latch>
#include <mutex>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/communicator/peer_failed_error.h"

#include "tests/support/ranks.h"

namespace d9d::test::communication_error_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr milliseconds kShort{500};

// Counts down when a scope ends, however it does.
struct AtEnd {
  std::latch& latch;
  ~AtEnd() { latch.count_down(); }
};

class CommunicationFailure : public ::testing::TestWithParam<RankBackend> {
 protected:
  // Runs `body` on ranks whose operations wait for kShort at most. Returns the message of each rank's
  // CommunicationError, or an empty text.
  static std::vector<std::string> messages_of(std::int64_t num_ranks, const std::function<void(World&)>& body,
                                              milliseconds timeout = kShort) {
    std::vector<std::string> messages(static_cast<std::size_t>(num_ranks));
    std::latch connected(num_ranks);
    run_ranks(GetParam(), num_ranks, [&](World& world) {
      {
        const AtEnd at_end{connected};
        (void)world.communicator(group_of(world, "all"));  // connects all ranks before the test's timeout begins to run
      }
      connected.wait();  // a rank that fails first would close connections that others are still making
      world.set_timeout(timeout);
      try {
        body(world);
      } catch (const CommunicationError& error) {
        messages[static_cast<std::size_t>(world.rank())] = error.what();
      }
    });
    return messages;
  }

  static Communicator& all_of(World& world) { return *world.communicator(group_of(world, "all")); }
};

TEST_P(CommunicationFailure, A_rank_that_does_not_come_is_named_to_all_that_wait) {
  std::latch told(2);
  const auto messages = messages_of(3, [&](World& world) {
    all_of(world).barrier();
    if (world.rank() == 1) return told.wait();
    const AtEnd at_end{told};
    all_of(world).all_reduce(at::zeros({4}), ReduceOp::kSum).wait();
  });
  EXPECT_EQ(messages[1], "");
  for (const std::size_t rank : {0, 2}) {
    EXPECT_THAT(messages[rank], AllOf(StartsWith("[core::communicator] "), HasSubstr("'all'"),
                                      HasSubstr("operation 2 all_reduce(sum, Float [4])"), HasSubstr("0.5 s"),
                                      HasSubstr("rank 1 at operation 1 barrier()"), Not(HasSubstr("\n"))));
  }
}

TEST_P(CommunicationFailure, A_rank_that_does_not_come_is_named_while_others_wait) {
  std::latch told(2);
  ::testing::internal::CaptureStderr();
  (void)messages_of(3, [&](World& world) {
    all_of(world).barrier();
    if (world.rank() == 1) return told.wait();
    const AtEnd at_end{told};
    all_of(world).all_reduce(at::zeros({4}), ReduceOp::kSum).wait();
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, AllOf(HasSubstr("operation 2 all_reduce(sum, Float [4])"),
                          HasSubstr("waited 0.25 s in group 'all'"), HasSubstr("rank 1 at operation 1 barrier()")));
  EXPECT_EQ(said.find("waited 0.25"), said.rfind("waited 0.25"));  // by one rank
}

TEST_P(CommunicationFailure, Different_operations_are_named_to_all) {
  const auto messages = messages_of(3, [](World& world) {
    const at::Tensor tensor = at::zeros({4});
    if (world.rank() == 2) {
      all_of(world).broadcast(tensor, 0).wait();
    } else {
      all_of(world).all_reduce(tensor, ReduceOp::kSum).wait();
    }
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("expected the same operation on all ranks of group 'all'"),
                               HasSubstr("at operation 1 all_reduce(sum, Float [4])"),
                               HasSubstr("at operation 1 broadcast(from 0, Float [4])")));
  }
}

TEST_P(CommunicationFailure, Different_shapes_are_named_to_all) {
  const auto messages = messages_of(2, [](World& world) {
    all_of(world).all_reduce(at::zeros({world.rank() == 0 ? 4 : 400}), ReduceOp::kSum).wait();
  });
  for (const std::string& message : messages) EXPECT_THAT(message, HasSubstr("'all'"));
}

TEST_P(CommunicationFailure, A_group_that_failed_stays_failed_and_others_work) {
  const auto messages = messages_of(3, [](World& world) {
    const auto pair = world.rank() == 2 ? nullptr : world.communicator(group_of(world, "pair", {0, 1}));
    if (world.rank() == 2) return;
    EXPECT_THROW(all_of(world).barrier(), CommunicationError);
    const at::Tensor one = at::ones({1});
    pair->all_reduce(one, ReduceOp::kSum).wait();
    EXPECT_EQ(one.item<float>(), 2);
    all_of(world).all_reduce(one, ReduceOp::kSum).wait();
  });
  for (const std::size_t rank : {0, 1}) EXPECT_THAT(messages[rank], HasSubstr("rank 2 (no operation yet)"));
}

TEST_P(CommunicationFailure, Abort_of_the_job_frees_ranks_that_wait_with_its_reason) {
  const auto begin = std::chrono::steady_clock::now();
  const auto messages = messages_of(
      4,
      [](World& world) {
        if (world.rank() == 3) return world.abort("rank 3 failed: out of coffee");
        const std::int64_t other = world.rank() == 0 ? 1 : 0;
        if (world.rank() < 2) {  // these ranks wait for each other, in a group without rank 3
          const at::Tensor tensor = at::zeros({4});
          const auto pair = world.communicator(group_of(world, "pair", {0, 1}));
          pair->exchange({{.direction = PointToPoint::Direction::kReceive, .tensor = tensor, .peer = other}}).wait();
        } else {
          all_of(world).barrier();
        }
      },
      std::chrono::seconds(50));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  for (const std::size_t rank : {0, 1, 2}) EXPECT_THAT(messages[rank], HasSubstr("rank 3 failed: out of coffee"));
}

TEST_P(CommunicationFailure, After_an_abort_nothing_new_begins) {
  const auto messages = messages_of(2, [](World& world) {
    if (world.rank() == 0) world.abort("rank 0 failed: early");
    const auto fresh = world.communicator(group_of(world, "fresh", {1, 0}));
    fresh->barrier();
  });
  for (const std::string& message : messages) EXPECT_THAT(message, HasSubstr("rank 0 failed: early"));
}

TEST_P(CommunicationFailure, Abort_of_a_group_fails_that_group_alone) {
  const auto messages = messages_of(
      2,
      [](World& world) {
        const auto other = world.communicator(group_of(world, "other", {1, 0}));
        if (world.rank() == 0) {
          all_of(world).abort("the sky is green");
        } else {
          EXPECT_THROW(all_of(world).barrier(), CommunicationError);
        }
        other->barrier();
        all_of(world).barrier();
      },
      std::chrono::seconds(50));
  for (const std::string& message : messages) EXPECT_THAT(message, HasSubstr("the sky is green"));
}

TEST_P(CommunicationFailure, All_to_all_with_splits_that_do_not_match_says_how_many_rows_came) {
  const auto messages = messages_of(2, [](World& world) {
    const at::Tensor two = at::zeros({2});
    const at::Tensor expected = at::zeros({world.rank() == 0 ? 2 : 200});
    all_of(world).all_to_all(expected, two, {1, expected.numel() - 1}, {1, 1}).wait();
  });
  EXPECT_THAT(messages[1], HasSubstr("expected 199 rows from rank 1, got 1"));
}

TEST_P(CommunicationFailure, A_message_of_another_shape_is_refused_by_its_receiver) {
  for (const std::int64_t size : {2, 4000}) {  // shorter and longer than expected
    const auto messages = messages_of(2, [&](World& world) {
      const bool is_sender = world.rank() == 0;
      all_of(world)
          .exchange({{.direction = is_sender ? PointToPoint::Direction::kSend : PointToPoint::Direction::kReceive,
                      .tensor = at::zeros({is_sender ? size : 4}),
                      .peer = is_sender ? 1 : 0}})
          .wait();
    });
    EXPECT_THAT(messages[1], AllOf(HasSubstr("rank 1"), HasSubstr("receive(Float [4]) from rank 0")));
  }
}

TEST_P(CommunicationFailure, A_message_that_does_not_come_names_its_source) {
  std::latch told(1);
  const auto messages = messages_of(3, [&](World& world) {
    Communicator& all = all_of(world);
    if (world.rank() != 1) return told.wait();
    const AtEnd at_end{told};
    const at::Tensor tensor = at::zeros({4});
    all.exchange({{.direction = PointToPoint::Direction::kReceive, .tensor = tensor, .peer = 2}}).wait();
  });
  EXPECT_THAT(messages[1], AllOf(HasSubstr("rank 1 waited 0.5 s in group 'all' for receive(Float [4]) from rank 2")));
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicationFailure, ::testing::Values(RankBackend::kThreads, RankBackend::kGloo),
                         [](const auto& param_info) { return std::string(to_string(param_info.param)); });

TEST(ProcessGroupFailure, Ranks_that_only_suffer_throw_PeerFailedError) {
  std::mutex mutex;
  int num_causes = 0;
  int num_sufferers = 0;
  run_ranks(RankBackend::kGloo, 3, [&](World& world) {
    const auto all = world.communicator(group_of(world, "all"));
    world.set_timeout(kShort);
    if (world.rank() == 2) return;
    try {
      all->barrier();
    } catch (const PeerFailedError&) {
      const std::lock_guard lock(mutex);
      ++num_sufferers;
    } catch (const CommunicationError&) {
      const std::lock_guard lock(mutex);
      ++num_causes;
    }
  });
  EXPECT_EQ(num_causes, 1);
  EXPECT_EQ(num_sufferers, 1);
}

TEST(ProcessGroupFailure, Ranks_that_do_not_connect_are_named) {
  run_ranks(RankBackend::kGloo, 3, [&](World& world) {
    if (world.rank() != 0) return;
    world.set_timeout(kShort);
    try {
      (void)world.communicator(group_of(world, "all"));
      ADD_FAILURE() << "connected alone";
    } catch (const CommunicationError& error) {
      EXPECT_STREQ(error.what(), "[core::communicator] rank 0 connecting group 'all' waited 0.5 s for ranks: 1, 2.");
    }
  });
}

}  // namespace
}  // namespace d9d::test::communication_error_test
