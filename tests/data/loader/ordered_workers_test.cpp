#include "d9d/data/loader/ordered_workers.h"

#include <signal.h>

#include <atomic>
#include <latch>
#include <memory>

#include <gtest/gtest.h>

namespace d9d::ordered_workers_test {
namespace {

using Workers = OrderedWorkers<std::unique_ptr<std::int64_t>>;  // results need only be movable
using namespace std::chrono_literals;

std::unique_ptr<std::int64_t> square(std::int64_t index) { return std::make_unique<std::int64_t>(index * index); }

TEST(OrderedWorkers, Hands_results_out_in_order) {
  Workers workers(square, {.first = 3, .end = 500, .num_workers = 4, .num_ahead = 5});
  for (std::int64_t i = 3; i < 500; ++i) ASSERT_EQ(*workers.take(), i * i);
}

TEST(OrderedWorkers, Keeps_the_order_when_an_early_result_is_the_slowest) {
  std::latch later_ones_done(3);
  Workers workers(
      [&](std::int64_t index) {
        index == 0 ? later_ones_done.wait() : later_ones_done.count_down();
        return square(index);
      },
      {.end = 4, .num_workers = 2, .num_ahead = 4});
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(*workers.take(), i * i);
}

TEST(OrderedWorkers, Show_the_next_result_when_it_is_ready_and_do_not_wait_for_it) {
  std::latch may_finish(1);
  Workers workers(
      [&](std::int64_t index) {
        if (index == 1) may_finish.wait();
        return square(index + 10);
      },
      {.num_ahead = 1});
  const auto seen = [&] {
    std::optional<std::int64_t> result;
    workers.look([&](const std::unique_ptr<std::int64_t>& next) { result = *next; });
    return result;
  };
  while (!seen()) std::this_thread::yield();
  EXPECT_EQ(seen(), 100);
  EXPECT_EQ(*workers.take(), 100);
  EXPECT_EQ(seen(), std::nullopt);
  may_finish.count_down();
  EXPECT_EQ(*workers.take(), 121);
}

TEST(OrderedWorkers, Work_at_the_same_time) {
  std::latch all_three(3);
  Workers workers(
      [&](std::int64_t index) {
        all_three.arrive_and_wait();
        return square(index);
      },
      {.end = 3, .num_workers = 3, .num_ahead = 3});
  EXPECT_EQ(*workers.take(), 0);
}

TEST(OrderedWorkers, Compute_no_further_ahead_than_allowed) {
  std::atomic<std::int64_t> taken = 0, most_ahead = 0;
  Workers workers(
      [&](std::int64_t index) {
        const std::int64_t ahead = index - taken;
        if (ahead > most_ahead) most_ahead = ahead;
        return square(index);
      },
      {.num_workers = 2, .num_ahead = 3});
  for (; taken < 1000; ++taken) (void)workers.take();
  EXPECT_LE(most_ahead, 3);  // `taken` is updated one result late
}

TEST(OrderedWorkers, Rethrow_at_the_failed_result_and_stay_there) {
  Workers workers(
      [](std::int64_t index) {
        if (index == 2) throw std::runtime_error("bad two");
        return square(index);
      },
      {.num_workers = 2, .num_ahead = 4});
  EXPECT_EQ(*workers.take(), 0);
  EXPECT_EQ(*workers.take(), 1);
  EXPECT_THROW((void)workers.take(), std::runtime_error);
  EXPECT_THROW((void)workers.take(), std::runtime_error);
}

TEST(OrderedWorkers, Give_up_waiting_after_the_timeout_and_can_wait_again) {
  std::latch allowed(1);
  Workers workers(
      [&](std::int64_t index) {
        allowed.wait();
        return square(index);
      },
      {.num_workers = 1, .num_ahead = 1});
  EXPECT_EQ(workers.take_within(1ms), std::nullopt);
  allowed.count_down();
  EXPECT_EQ(**workers.take_within(60s), 0);
}

TEST(OrderedWorkers, Compute_nothing_that_is_not_asked_for_with_none_ahead) {
  std::atomic<std::int64_t> num_made = 0;
  Workers workers(
      [&](std::int64_t index) {
        ++num_made;
        return square(index);
      },
      {.num_workers = 2, .num_ahead = 0});
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(num_made, i);
    EXPECT_EQ(*workers.take(), i * i);
  }
}

TEST(OrderedWorkers, Tell_of_a_long_wait_after_half_the_timeout) {
  std::latch allowed(1);
  Workers workers(
      [&](std::int64_t index) {
        allowed.wait();
        return square(index);
      },
      {.num_workers = 1, .num_ahead = 0});
  std::vector<double> told;
  const ResultWait wait{.timeout = 100ms, .on_long_wait = [&](double seconds) { told.push_back(seconds); }};
  EXPECT_EQ(workers.take_within(wait), std::nullopt);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_GE(told.front(), 0.05);
  allowed.count_down();
  EXPECT_EQ(**workers.take_within(60s), 0);
  EXPECT_EQ(told.size(), 1U);
}

TEST(OrderedWorkers, End_a_wait_soon_after_the_job_was_asked_to_stop) {
  const auto allowed = std::make_shared<std::latch>(1);
  {
    Workers workers(
        [=](std::int64_t index) {
          allowed->wait();
          return square(index);
        },
        {.num_workers = 1, .num_ahead = 0, .patience = 10ms});
    const InterruptScope scope;
    ::raise(SIGTERM);
    EXPECT_EQ(workers.take_within(ResultWait{}), std::nullopt);
  }
  allowed->count_down();
}

TEST(OrderedWorkers, End_without_a_call_that_hangs_after_a_timeout) {
  const auto has_begun = std::make_shared<std::latch>(1), allowed = std::make_shared<std::latch>(1);
  const auto has_returned = std::make_shared<std::latch>(1);
  {
    Workers workers(
        [=](std::int64_t index) {
          has_begun->count_down();
          allowed->wait();
          has_returned->count_down();
          return square(index);
        },
        {.end = 1, .num_workers = 3, .num_ahead = 3});
    has_begun->wait();
    EXPECT_EQ(workers.take_within(1ms), std::nullopt);
  }
  EXPECT_FALSE(has_returned->try_wait());
  allowed->count_down();
  has_returned->wait();
}

TEST(OrderedWorkers, End_without_calls_that_outlast_the_patience_and_tell_which) {
  const auto have_begun = std::make_shared<std::latch>(2), allowed = std::make_shared<std::latch>(1),
             have_returned = std::make_shared<std::latch>(2);
  std::vector<std::int64_t> left_behind;
  {
    Workers workers(
        [=](std::int64_t index) {
          if (index == 0) return square(index);
          have_begun->count_down();
          allowed->wait();
          have_returned->count_down();
          return square(index);
        },
        {.num_workers = 2,
         .num_ahead = 2,
         .patience = 1ms,
         .on_left_behind = [&](const std::vector<std::int64_t>& indices) { left_behind = indices; }});
    EXPECT_EQ(*workers.take(), 0);
    have_begun->wait();
  }
  EXPECT_EQ(left_behind, (std::vector<std::int64_t>{1, 2}));
  allowed->count_down();
  have_returned->wait();
}

TEST(OrderedWorkers, Wait_in_the_end_for_a_call_that_returns_in_time) {
  std::latch has_begun(1), allowed(1);
  std::atomic<bool> has_returned = false, left_behind = false;
  {
    Workers workers(
        [&](std::int64_t index) {
          has_begun.count_down();
          allowed.wait();
          has_returned = true;
          return square(index);
        },
        {.end = 1, .patience = 60s, .on_left_behind = [&](const auto&) { left_behind = true; }});
    has_begun.wait();
    allowed.count_down();
  }
  EXPECT_TRUE(has_returned);
  EXPECT_FALSE(left_behind);
}

TEST(OrderedWorkers, End_while_results_wait_and_while_there_is_no_room) {
  Workers workers(square, {.num_workers = 4, .num_ahead = 2});
  (void)workers.take();
}

}  // namespace
}  // namespace d9d::ordered_workers_test
