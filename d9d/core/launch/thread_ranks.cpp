#include "d9d/core/launch/thread_ranks.h"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>

#include "d9d/base/check.h"
#include "d9d/base/log.h"
#include "d9d/core/communicator/peer_failed_error.h"
#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/core/device/vector_math.h"
#include "d9d/core/error/error_place.h"

namespace d9d {
namespace {

// Shared with threads that may outlive the call.
struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t num_running = 0;
  std::int64_t failed_rank = -1;
  std::exception_ptr failure;
};

template <class ErrorType>
bool is_a(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const ErrorType&) {
    return true;
  } catch (...) {
    return false;
  }
}

// Returns whether `failure` is reported instead of the earlier failure `reported`: if there is none, or if `reported`
// is a PeerFailedError and `failure` is no error of communication.
bool goes_before(const std::exception_ptr& failure, const std::exception_ptr& reported) {
  return !reported || (is_a<PeerFailedError>(reported) && !is_a<CommunicationError>(failure));
}

std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error_line(error);
  } catch (...) {
    return kUnknownException;
  }
}

// Ranks of all run_thread_ranks() that have not ended.
// lint: allow(mutable-global): what exit() calls can reach nothing else
std::atomic<std::int64_t> num_running_ranks = 0;

// Reports an error if a rank calls exit(), which would end all other ranks with its exit code as if they had finished.
void refuse_exit_of_ranks() {
  static const int registered = std::atexit([] {
    const std::int64_t num_running = num_running_ranks;
    if (num_running == 0) return;
    write_line_to_stderr(cat("error: the program called exit() while ", num_running,
                             " ranks were running. Return from the program's function instead."));
    std::_Exit(1);  // lint: allow(process-exit): threads use what the rest of exit() destroys
  });
  (void)registered;
}

// Throws the failure with its rank in the text. Keeps the type, so that exit codes are those of a job with one rank.
[[noreturn]] void rethrow_with_rank(const Progress& progress) {
  const std::string text = cat("rank ", progress.failed_rank, ": ", text_of(progress.failure));
  try {
    std::rethrow_exception(progress.failure);
  } catch (const ConfigError&) {
    throw ConfigError(text);
  } catch (const StateError&) {
    throw StateError(text);
  } catch (const IoError&) {
    throw IoError(text);
  } catch (const CommunicationError&) {
    throw CommunicationError(text);
  } catch (const UsageError&) {
    throw UsageError(text);
  } catch (const InternalError&) {
    throw InternalError(text);
  } catch (...) {
    throw std::runtime_error(text);
  }
}

}  // namespace

void run_thread_ranks(std::int64_t num_ranks, const std::function<void(const std::shared_ptr<World>& world)>& body,
                      std::chrono::milliseconds grace) {
  choose_vector_math();
  refuse_exit_of_ranks();
  num_running_ranks += num_ranks;
  const auto job = std::make_shared<ThreadJob>(num_ranks);
  const auto progress = std::make_shared<Progress>();
  progress->num_running = num_ranks;
  const int threads_per_rank = std::max(1, at::get_num_threads() / static_cast<int>(num_ranks));
  const auto run_rank = [job, progress, body, threads_per_rank](std::int64_t rank) {
    std::exception_ptr failure;
    try {
      at::set_num_threads(threads_per_rank);
      body(std::make_shared<World>(std::make_unique<ThreadBackend>(job, rank)));
      job->leave(rank);
    } catch (...) {
      failure = std::current_exception();
    }
    --num_running_ranks;
    const std::lock_guard lock(progress->mutex);
    if (failure && goes_before(failure, progress->failure)) {
      progress->failure = failure;
      progress->failed_rank = rank;
      job->abort(cat("[core::communicator] stopped because rank ", rank, " failed: ", text_of(failure)));
    }
    --progress->num_running;
    progress->changed.notify_all();
  };
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) threads.emplace_back(run_rank, rank);
  std::unique_lock lock(progress->mutex);
  progress->changed.wait(lock, [&] { return progress->num_running == 0 || progress->failure; });
  progress->changed.wait_for(lock, grace, [&] { return progress->num_running == 0; });
  if (progress->num_running > 0) {
    write_line_to_stderr(cat("error: rank ", progress->failed_rank, ": ", text_of(progress->failure)));
    std::_Exit(1);  // lint: allow(process-exit): the stuck threads use what the caller would destroy
  }
  lock.unlock();
  for (std::thread& thread : threads) thread.join();
  if (progress->failure) rethrow_with_rank(*progress);
}

}  // namespace d9d
