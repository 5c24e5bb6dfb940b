#include "d9d/core/peer_memory/link_watch.h"

#include <atomic>
#include <latch>
#include <semaphore>

#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/core/communicator/thread/thread_job.h"

#include "tests/support/forwarding_communicator.h"
#include "tests/support/ranks.h"

namespace d9d::test::link_watch_test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kFar{20};  // far more than any of this takes

// A communicator that reports its failure itself, as that of a device does.
struct Abortable : ForwardingCommunicator {
  using ForwardingCommunicator::ForwardingCommunicator;
  void abort(const std::string& /*reason*/) override { has_failed_ = true; }
  [[nodiscard]] bool has_failed() const override { return has_failed_; }

 private:
  std::atomic<bool> has_failed_ = false;
};

// A job of two ranks; the test is the first.
struct AbortingBackend final : CommunicatorBackend {
  explicit AbortingBackend(std::function<void(const std::string&)> on_abort) : abort_job(std::move(on_abort)) {}
  std::int64_t rank() const override { return 0; }
  std::int64_t world_size() const override { return 2; }
  at::Device device() const override { return at::kCPU; }
  std::shared_ptr<Communicator> connect(RankGroup group, milliseconds timeout) override {
    return std::make_shared<Abortable>(
        ThreadBackend(std::make_shared<ThreadJob>(2), 0).connect(std::move(group), timeout));
  }
  void abort(const std::string& reason) override { abort_job(reason); }
  void leave() override {}
  const std::function<void(const std::string&)> abort_job;
};

// The abort waits for the end of the waits, as NCCL's abort waits for the device.
TEST(LinkWatch, Ends_waits_while_the_job_is_being_aborted) {
  std::shared_ptr<Communicator> ranks;
  std::latch ended(1), aborted(1);
  std::string told;
  const auto world = std::make_shared<World>(std::make_unique<AbortingBackend>([&](const std::string& reason) {
    told = reason;
    ranks->abort(reason);
    ended.wait();
    aborted.count_down();
  }));
  world->set_timeout(milliseconds(10));
  ranks = world->communicator({.name = "pair", .ranks = {0, 1}, .index = 0});
  LinkWatch watch(world);
  bool has_ended = false;
  watch.add_link(&watch, ranks, [&] {
    if (!std::exchange(has_ended, true)) ended.count_down();
  });
  (void)watch.begin(&watch, "a message from", {});
  aborted.wait();
  EXPECT_THAT(told, HasSubstr("rank 0 has waited 0.01 s for a message from rank 1"));
  watch.remove_link(&watch);
}

struct LinkWatchOfAPair : ::testing::Test {
  LinkWatchOfAPair() { world->set_timeout(milliseconds(100)); }
  std::binary_semaphore aborted{0};
  const std::shared_ptr<World> world =
      std::make_shared<World>(std::make_unique<AbortingBackend>([this](const std::string&) { aborted.release(); }));
  const std::shared_ptr<Communicator> ranks = world->communicator({.name = "pair", .ranks = {0, 1}, .index = 0});
  LinkWatch watch{world};
};

// The host queues a wait long before the stream of the device reaches it.
TEST_F(LinkWatchOfAPair, Counts_from_when_the_stream_has_come_to_the_wait) {
  watch.add_link(&watch, ranks, [] {});
  std::atomic<bool> is_reached = false;
  std::counting_semaphore looks{0};
  (void)watch.begin(&watch, "a message from", {.is_reached = [&] { return looks.release(), is_reached.load(); }});
  for (int i = 0; i < 3; ++i) looks.acquire();
  EXPECT_FALSE(aborted.try_acquire());
  is_reached = true;
  EXPECT_TRUE(aborted.try_acquire_for(kFar));
  watch.remove_link(&watch);
}

TEST_F(LinkWatchOfAPair, Leaves_waits_alone_that_are_over_or_of_a_link_that_is_gone) {
  int gone = 0;
  watch.add_link(&gone, ranks, [] {});
  (void)watch.begin(&gone, "a message from", {});
  watch.remove_link(&gone);
  watch.add_link(&watch, ranks, [] {});
  watch.end(watch.begin(&watch, "the step of", {}));
  std::counting_semaphore looks{0};
  (void)watch.begin(&watch, "a message from", {.is_over = [&] { return looks.release(), true; }});
  (void)watch.begin(&watch, "room in", {.is_reached = [&] { return looks.release(), false; }});
  for (int i = 0; i < 3; ++i) looks.acquire();
  EXPECT_FALSE(aborted.try_acquire());
  watch.remove_link(&watch);
}

// Ranks that are late now and then come.
TEST_F(LinkWatchOfAPair, Aborts_if_ranks_are_late_at_all_looks) {
  std::atomic<bool> is_late = false;
  std::counting_semaphore looks{0};
  watch.add_link(
      &watch, ranks, [] {},
      [&, num_looks = 0]() mutable {
        looks.release();
        LinkWatch::Late late{.ranks = {}, .timeout = milliseconds(100)};
        if (is_late || num_looks++ % 2 == 0) late.ranks = {1};
        return late;
      });
  for (int i = 0; i < 4; ++i) looks.acquire();
  EXPECT_FALSE(aborted.try_acquire());
  is_late = true;
  EXPECT_TRUE(aborted.try_acquire_for(kFar));
  watch.remove_link(&watch);
}

}  // namespace
}  // namespace d9d::test::link_watch_test
