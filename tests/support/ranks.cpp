#include "tests/support/ranks.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "d9d/base/check.h"
#include "d9d/core/communicator/process_group/gloo_group.h"
#include "d9d/core/communicator/process_group/process_group_backend.h"
#include "d9d/core/communicator/thread/thread_job.h"

#include "tests/support/gpu_ranks.h"
#include "tests/support/gpu_test.h"

namespace d9d::test {
namespace {

// State that the threads of one run_ranks share.
class RankSupervisor {
 public:
  explicit RankSupervisor(std::int64_t num_ranks) : num_running_(num_ranks) {}

  // Called on the thread of a rank.
  void run(std::int64_t rank, const std::function<std::unique_ptr<CommunicatorBackend>(std::int64_t)>& connect,
           const std::function<void(World&)>& body) {
    try {
      World* const world = add(std::make_unique<World>(connect(rank)));
      body(*world);
      if (::testing::Test::HasFatalFailure()) abort_all(cat("rank ", rank, " left the body after a failed ASSERT_*"));
    } catch (const std::exception& error) {
      const std::string text = error.what();
      fail(cat("rank ", rank, " failed: ", text.substr(0, text.find('\n'))));
    } catch (...) {
      fail(cat("rank ", rank, " failed"));
    }
    const std::lock_guard lock(mutex_);
    --num_running_;
    changed_.notify_all();
  }

  void wait(std::chrono::seconds time_limit) {
    if (have_ended_within(time_limit)) return;
    ADD_FAILURE() << "ranks still run after " << time_limit.count() << " s";
    abort_all("time limit of the test");
    if (have_ended_within(std::chrono::seconds(20))) return;
    std::cerr << "run_ranks: ranks hang outside of communication" << std::endl;
    std::abort();
  }

  void rethrow() const {
    if (first_failure_) std::rethrow_exception(first_failure_);
  }

 private:
  World* add(std::unique_ptr<World> world) {
    const std::lock_guard lock(mutex_);
    worlds_.push_back(std::move(world));
    if (!abort_reason_.empty()) worlds_.back()->abort(abort_reason_);
    return worlds_.back().get();
  }

  void fail(const std::string& reason) {
    {
      const std::lock_guard lock(mutex_);
      if (!first_failure_) first_failure_ = std::current_exception();
    }
    abort_all(reason);
  }

  void abort_all(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (!abort_reason_.empty()) return;
    abort_reason_ = reason;
    for (const auto& world : worlds_) world->abort(reason);
  }

  bool have_ended_within(std::chrono::seconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [&] { return num_running_ == 0; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t num_running_;
  std::vector<std::unique_ptr<World>> worlds_;  // live until all ranks have ended
  std::string abort_reason_;                    // empty: none
  std::exception_ptr first_failure_;
};

std::function<std::unique_ptr<CommunicatorBackend>(std::int64_t rank)> connect_by(RankBackend backend,
                                                                                  std::int64_t num_ranks) {
  if (backend == RankBackend::kThreads) {
    return [job = std::make_shared<ThreadJob>(num_ranks)](std::int64_t rank) {
      return std::make_unique<ThreadBackend>(job, rank);
    };
  }
  return [num_ranks, store = c10::make_intrusive<c10d::HashStore>()](std::int64_t rank) {
    return std::make_unique<ProcessGroupBackend>(ProcessGroupBackend::Options{
        .store = store, .rank = rank, .world_size = num_ranks, .make_group = gloo_groups("127.0.0.1")});
  };
}

}  // namespace

const char* to_string(RankBackend backend) {
  return backend == RankBackend::kThreads ? "threads" : backend == RankBackend::kGloo ? "gloo" : "nccl";
}

RankGroup group_of(const World& world, std::string name, std::vector<std::int64_t> ranks) {
  if (ranks.empty()) {
    ranks.resize(static_cast<std::size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  const std::int64_t index = std::find(ranks.begin(), ranks.end(), world.rank()) - ranks.begin();
  return {.name = std::move(name), .ranks = std::move(ranks), .index = index};
}

std::shared_ptr<World> lone_rank(std::int64_t rank, std::int64_t num_ranks) {
  return std::make_shared<World>(std::make_unique<ThreadBackend>(std::make_shared<ThreadJob>(num_ranks), rank));
}

void run_ranks(RankBackend backend, std::int64_t num_ranks, const std::function<void(World&)>& body,
               std::chrono::seconds time_limit) {
  if (backend == RankBackend::kNccl) return run_gpu_ranks(num_ranks, body);
  const auto connect = connect_by(backend, num_ranks);
  RankSupervisor supervisor(num_ranks);
  std::vector<std::jthread> threads;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      supervisor.run(rank, connect, body);
    });
  }
  supervisor.wait(time_limit);
  threads.clear();  // joins
  supervisor.rethrow();
}

}  // namespace d9d::test
