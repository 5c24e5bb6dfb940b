#include "d9d/model_state/io/reader_threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

namespace d9d {

void for_each_in_threads(std::size_t count, int num_threads,
                         const std::function<std::function<void(std::size_t)>()>& make_worker) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    const at::NoGradGuard no_grad;
    const c10::ParallelGuard one_thread(true);  // these threads are what is parallel here
    try {
      const auto worker = make_worker();
      for (std::size_t i = next++; i < count; i = next++) worker(i);
    } catch (...) {
      next = count;
      const std::scoped_lock lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    const auto most = static_cast<int>(std::min<std::size_t>(count, static_cast<std::size_t>(num_threads)));
    for (int i = 1; i < most; ++i) threads.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace d9d
