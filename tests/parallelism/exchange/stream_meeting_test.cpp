#include "d9d/parallelism/exchange/stream_meeting.h"

#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/parallelism/exchange_ranks.h"

namespace d9d::test::stream_meeting_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Meeting {
  Meeting(std::shared_ptr<Communicator> ranks_, LinkWatch& watch)
      : ranks(std::move(ranks_)),
        memory(open_peer_memory(ranks, 8 * ranks->size()).memory),
        meeting(ranks, std::shared_ptr<LinkWatch>(std::shared_ptr<void>(), &watch)) {}

  std::shared_ptr<Communicator> ranks;
  std::shared_ptr<PeerMemory> memory;
  StreamMeeting meeting;
};

class StreamMeetingOf : public ExchangeTest<Meeting> {};
INSTANTIATE_TEST_SUITE_P(Nccl, StreamMeetingOf, kExchangeGpus, name_of_ranks);
INSTANTIATE_TEST_SUITE_P(Backends, StreamMeetingOf, kExchangeBackends, name_of_ranks);

// Each rank writes a number, all read it, and it is written again: a meeting that lets a rank pass early shows another.
TEST_P(StreamMeetingOf, Separates_what_ranks_write_from_what_they_read) {
  on_ranks([](World& world, Meeting& each) {
    const at::Tensor own = each.memory->own().view(at::kLong).narrow(0, 0, 1);
    at::Tensor is_right = at::ones({}, at::TensorOptions(world.device()).dtype(at::kBool));
    for (std::int64_t step = 1; step <= 200; ++step) {
      own.fill_(step * world.size() + world.rank());
      each.meeting.meet();
      for (std::int64_t rank = 0; rank < world.size(); ++rank) {
        const at::Tensor theirs = at::empty_like(own);
        each.memory->read(theirs, rank, 0);
        is_right.logical_and_((theirs == step * world.size() + rank).all());
      }
      each.meeting.meet();
      if (step % 50 == 0) each.meeting.close();
    }
    EXPECT_TRUE(is_right.item<bool>());
    each.memory->close();
  });
}

TEST_P(StreamMeetingOf, Does_not_wait_for_a_rank_that_has_failed) {
  if (GetParam().backend == RankBackend::kNccl) GTEST_SKIP() << "a rank that fails ends its process";
  EXPECT_THAT(
      [] {
        on_ranks([](World& world, Meeting& each) {
          each.meeting.meet();
          if (world.rank() == 1) throw ConfigError("rank 1 throws");
          each.meeting.meet();
        });
      },
      ThrowsMessage<ConfigError>(HasSubstr("rank 1 throws")));
}

// The last rank, whose words the others would have set back first.
TEST_P(StreamMeetingOf, Ends_the_job_and_names_only_the_rank_that_does_not_come) {
  if (GetParam().backend == RankBackend::kNccl) GTEST_SKIP() << "a rank that fails ends its process";
  EXPECT_THAT(
      [] {
        on_ranks([](World& world, Meeting& each) {
          each.meeting.meet();
          if (world.rank() + 1 == world.size()) world.set_timeout(std::chrono::milliseconds(200));
          if (world.rank() + 2 == world.size()) wait_for_failure(world);
          each.meeting.meet();
        });
      },
      ThrowsMessage<CommunicationError>(
          HasSubstr(cat("has waited 0.2 s in group 'all' for copies of rank ", GetParam().num_ranks - 2, "."))));
}

}  // namespace
}  // namespace d9d::test::stream_meeting_test
