#include "d9d/model_state/io/thread_queue.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

namespace d9d {

void work_through(std::size_t num_items, int num_threads, const std::function<WorkOnItem()>& make_worker) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto run = [&] {
    const at::NoGradGuard no_grad;
    const c10::ParallelGuard one_thread(true);  // parallelism comes from these threads alone
    try {
      const WorkOnItem work = make_worker();
      for (std::size_t item = next++; item < num_items; item = next++) work(item);
    } catch (...) {
      next = num_items;
      const std::scoped_lock lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < std::min(static_cast<std::size_t>(std::max(num_threads, 1)), num_items); ++i) {
      threads.emplace_back(run);
    }
    run();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace d9d
