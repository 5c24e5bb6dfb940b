#include "d9d/testing/ranks.h"

#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "d9d/base/check.h"
#include "d9d/core/communicator/process_group/gloo_group.h"
#include "d9d/core/communicator/process_group/process_group_backend.h"
#include "d9d/core/communicator/thread/thread_job.h"

namespace d9d::testing {
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
      world->leave();
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

  // Whether all ended in time; the others are aborted.
  [[nodiscard]] bool wait(std::chrono::seconds time_limit) {
    if (have_ended_within(time_limit)) return true;
    abort_all("time limit of the test");
    if (have_ended_within(std::chrono::seconds(20))) return false;
    std::cerr << "run_ranks: ranks hang outside of communication" << std::endl;
    std::abort();  // lint: allow(process-exit): no rank listens any more
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

using Connect = std::function<std::unique_ptr<CommunicatorBackend>(std::int64_t rank)>;

Connect connect_by(RankBackend backend, std::int64_t num_ranks) {
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

void run_ranks(std::int64_t num_ranks, const std::function<void(World&)>& body, const RankOptions& options) {
  const Connect connect = connect_by(options.backend, num_ranks);
  RankSupervisor supervisor(num_ranks);
  std::vector<std::jthread> threads;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      supervisor.run(rank, connect, body);
    });
  }
  const bool is_in_time = supervisor.wait(options.time_limit);
  threads.clear();  // joins
  D9D_CHECK(is_in_time, StateError, "[testing::ranks] expected ranks to end within ", options.time_limit.count(),
            " s, got some that still ran. Raise RankOptions::time_limit, or look for ranks that wait for each other.");
  supervisor.rethrow();
}

void run_ranks(const DeviceMeshParameters& mesh, const std::function<void(const DistContext&)>& body,
               const RankOptions& options) {
  run_ranks(
      mesh.world_size(),
      [&](World& world) {
        const std::shared_ptr<World> borrowed(std::shared_ptr<World>(), &world);
        body(DistContext({.mesh = mesh, .world = borrowed, .local_rank = world.rank()}));
      },
      options);
}

}  // namespace d9d::testing
