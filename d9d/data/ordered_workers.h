// Threads that compute make(first), make(first + 1), ... ahead of time; take() hands the results out in that order,
// whichever thread was faster.
//
// Example
//   OrderedWorkers<Batch> workers([&](std::int64_t i) { return read_batch(i); },
//                                 {.first = 0, .end = 100, .num_workers = 4, .num_ahead = 8});
//   for (int i = 0; i < 100; ++i) train(workers.take());
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "d9d/base/check.h"

namespace d9d {

template <class Result>
class OrderedWorkers {
 public:
  struct Options {
    std::int64_t first = 0;
    std::optional<std::int64_t> end = {};  // unset: for ever
    std::int64_t num_workers = 1;
    std::int64_t num_ahead = 1;  // results computed or being computed that were not taken yet, at most
  };

  // `make` is called from the workers, at the same time for different indices.
  OrderedWorkers(std::function<Result(std::int64_t)> make, Options options)
      : make_(std::move(make)),
        options_(options),
        next_to_take_(options.first),
        next_to_make_(options.first),
        slots_(static_cast<std::size_t>(options.num_ahead)) {
    D9D_ASSERT(options.num_workers >= 1 && options.num_ahead >= 1, "no workers");
    for (std::int64_t i = 0; i < options.num_workers; ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  }

  // Waits for the calls of `make` that have begun; begins no other.
  ~OrderedWorkers() {
    for (std::jthread& thread : threads_) thread.request_stop();
  }
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  // The next result, in order. Rethrows what make() threw for it, then and at each later call. Throws IoError when a
  // positive timeout passes first; taking again waits again.
  [[nodiscard]] Result take(std::chrono::duration<double> timeout = {}) {
    std::unique_lock lock(mutex_);
    D9D_ASSERT(!options_.end || next_to_take_ < *options_.end, "took beyond the end");
    Slot& slot = slot_of(next_to_take_);
    const auto is_ready = [&slot] { return !std::holds_alternative<std::monostate>(slot); };
    if (timeout.count() > 0) {
      D9D_CHECK(ready_.wait_for(lock, timeout, is_ready), IoError, "[data::OrderedWorkers] expected result ",
                next_to_take_, " within ", timeout.count(),
                " seconds, got none. Check the storage that is read, or raise the timeout.");
    } else {
      ready_.wait(lock, is_ready);
    }
    if (const auto* error = std::get_if<std::exception_ptr>(&slot)) std::rethrow_exception(*error);
    Result result = std::move(std::get<Result>(slot));
    slot = std::monostate();
    ++next_to_take_;
    room_.notify_one();
    return result;
  }

 private:
  using Slot = std::variant<std::monostate, Result, std::exception_ptr>;  // empty, computed, failed

  Slot& slot_of(std::int64_t index) { return slots_[static_cast<std::size_t>(index) % slots_.size()]; }

  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const auto is_at_end = [this] { return options_.end && next_to_make_ >= *options_.end; };
    const auto has_room = [this] { return next_to_make_ < next_to_take_ + std::ssize(slots_); };
    while (room_.wait(lock, stop, [&] { return is_at_end() || has_room(); }) && !stop.stop_requested() &&
           !is_at_end()) {
      const std::int64_t index = next_to_make_++;
      lock.unlock();
      Slot made = compute(index);
      lock.lock();
      slot_of(index) = std::move(made);
      ready_.notify_one();
    }
  }

  Slot compute(std::int64_t index) {
    try {
      return make_(index);
    } catch (...) {
      return std::current_exception();
    }
  }

  const std::function<Result(std::int64_t)> make_;
  const Options options_;
  std::mutex mutex_;  // guards everything below
  std::condition_variable_any room_;
  std::condition_variable ready_;
  std::int64_t next_to_take_;
  std::int64_t next_to_make_;
  std::vector<Slot> slots_;            // result i waits in slot i mod num_ahead
  std::vector<std::jthread> threads_;  // last: joined before what they use goes
};

}  // namespace d9d
