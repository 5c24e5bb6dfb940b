// Threads that compute make(first), make(first + 1), ... ahead of time. take() returns the results in that order,
// whichever thread finishes first.
//
// Example
//   OrderedWorkers<Batch> workers([&](std::int64_t i) { return read_batch(i); },
//                                 {.first = 0, .end = 100, .num_workers = 4, .num_ahead = 8});
//   for (int i = 0; i < 100; ++i) train(workers.take());
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/base/interrupt.h"
#include "d9d/core/communicator/long_wait.h"

namespace d9d {

inline constexpr std::chrono::seconds kDefaultPatience{5};
inline constexpr std::chrono::duration<double> kLongestWait{1e8};  // three years; clocks overflow with longer times

// How a thread waits for a result.
struct ResultWait {
  std::chrono::duration<double> timeout{0};               // 0: for ever
  std::function<void(double seconds)> on_long_wait = {};  // called after long_wait(timeout), then once a minute
};

namespace detail {

// The state of OrderedWorkers that its threads share. A thread that outlives the OrderedWorkers keeps this state alive.
template <class Result>
class OrderedWork {
 public:
  struct Options {
    std::int64_t first = 0;
    std::optional<std::int64_t> end = {};  // unset: endless
    std::int64_t num_workers = 1;
    // Maximum number of results that are computed or in progress but not yet taken. 0: a result is computed when take()
    // waits for it.
    std::int64_t num_ahead = 1;
    // `patience`: how long the destructor waits for calls of make() that have begun, and how long take_within() waits
    // for a result after the job was asked to stop (base/interrupt.h). `on_left_behind` gets the sorted indices of the
    // calls that the destructor abandons.
    std::chrono::duration<double> patience = kDefaultPatience;
    std::function<void(const std::vector<std::int64_t>& indices)> on_left_behind = {};
  };

  OrderedWork(std::function<Result(std::int64_t)> make, Options options)
      : make_(std::move(make)),
        options_(std::move(options)),
        next_to_take_(options_.first),
        next_to_make_(options_.first),
        slots_(static_cast<std::size_t>(std::max<std::int64_t>(1, options_.num_ahead))),
        making_(static_cast<std::size_t>(options_.num_workers)) {}

  std::optional<Result> take(const ResultWait& wait) {
    std::unique_lock lock(mutex_);
    D9D_ASSERT(!options_.end || next_to_take_ < *options_.end, "took beyond the end");
    is_wanted_ = true;
    room_.notify_one();
    Slot& slot = slot_of(next_to_take_);
    is_stuck_ = !comes_in_time(lock, slot, wait);
    if (is_stuck_) return std::nullopt;
    if (const auto* error = std::get_if<std::exception_ptr>(&slot)) std::rethrow_exception(*error);
    std::optional<Result> result = std::move(std::get<Result>(slot));
    slot = std::monostate();
    is_wanted_ = false;
    ++next_to_take_;
    room_.notify_one();
    return result;
  }

  template <class Read>
  void look(const Read& read) {
    const std::unique_lock lock(mutex_);
    if (const auto* const result = std::get_if<Result>(&slot_of(next_to_take_))) read(*result);
  }

  void work(std::size_t worker, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const auto is_at_end = [this] { return options_.end && next_to_make_ >= *options_.end; };
    const auto has_room = [this] {
      return next_to_make_ < next_to_take_ + std::max<std::int64_t>(options_.num_ahead, is_wanted_ ? 1 : 0);
    };
    while (room_.wait(lock, stop, [&] { return is_at_end() || has_room(); }) && !stop.stop_requested() &&
           !is_at_end()) {
      const std::int64_t index = next_to_make_++;
      making_[worker] = index;
      lock.unlock();
      Slot made = compute(index);
      lock.lock();
      making_[worker].reset();
      slot_of(index) = std::move(made);
      ready_.notify_one();
    }
  }

  // Called after all workers were asked to stop: waits up to `patience` and returns, by worker, the index that it is
  // still computing, if any. Does not wait if the last take() gave up.
  std::vector<std::optional<std::int64_t>> still_making() {
    std::unique_lock lock(mutex_);
    const auto is_over = [this] { return std::ranges::none_of(making_, &std::optional<std::int64_t>::has_value); };
    if (!is_stuck_) ready_.wait_for(lock, std::min(options_.patience, kLongestWait), is_over);
    return making_;
  }

 private:
  using Slot = std::variant<std::monostate, Result, std::exception_ptr>;  // not computed yet, computed, failed

  // Waits for a result or an error in `slot`. Returns false if none comes before the timeout, or within `patience`
  // after the job was asked to stop.
  bool comes_in_time(std::unique_lock<std::mutex>& lock, const Slot& slot, const ResultWait& wait) {
    using Clock = std::chrono::steady_clock;
    using Milliseconds = std::chrono::milliseconds;
    constexpr Milliseconds kLook{50};  // polling interval for a stop request: signals wake no thread
    const std::chrono::duration<double> timeout =
        wait.timeout.count() > 0 ? std::min(wait.timeout, kLongestWait) : kLongestWait;
    const Clock::time_point begin = Clock::now();
    std::chrono::duration<double> next_line = long_wait(std::chrono::duration_cast<Milliseconds>(timeout));
    std::optional<Clock::time_point> asked_to_stop;
    while (true) {
      const std::chrono::duration<double> left = timeout - (Clock::now() - begin);
      const auto is_ready = [&slot] { return !std::holds_alternative<std::monostate>(slot); };
      // Also wakes up when on_long_wait is due, because the timeout may end within the same polling interval.
      const std::chrono::duration<double> to_line = next_line - (Clock::now() - begin);
      const std::chrono::duration<double> look =
          wait.on_long_wait && to_line.count() > 0 ? std::min<std::chrono::duration<double>>(to_line, kLook) : kLook;
      if (ready_.wait_for(lock, std::min(left, look), is_ready)) return true;
      const std::chrono::duration<double> waited = Clock::now() - begin;
      if (waited >= timeout) return false;
      if (!asked_to_stop && interrupt_requested()) asked_to_stop = Clock::now();
      if (asked_to_stop && Clock::now() - *asked_to_stop >= options_.patience) return false;
      if (!wait.on_long_wait || waited < next_line) continue;
      next_line = waited + std::chrono::minutes(1);
      lock.unlock();
      wait.on_long_wait(waited.count());
      lock.lock();
    }
  }

  Slot& slot_of(std::int64_t index) { return slots_[static_cast<std::size_t>(index) % slots_.size()]; }

  Slot compute(std::int64_t index) {
    try {
      return make_(index);
    } catch (...) {
      return std::current_exception();
    }
  }

  const std::function<Result(std::int64_t)> make_;
  const Options options_;
  std::mutex mutex_;  // guards all members below
  std::condition_variable_any room_;
  std::condition_variable ready_;
  std::int64_t next_to_take_;
  std::int64_t next_to_make_;
  std::vector<Slot> slots_;                          // result i is stored in slot i mod num_ahead
  std::vector<std::optional<std::int64_t>> making_;  // by worker: the index that it computes; none while it waits
  bool is_wanted_ = false;                           // a take() has begun and not returned a result yet
  bool is_stuck_ = false;                            // the last take() gave up: timeout, or a request to stop
};

}  // namespace detail

template <class Result>
class OrderedWorkers {
 public:
  using Options = typename detail::OrderedWork<Result>::Options;

  // The workers call `make` concurrently, with different indices.
  OrderedWorkers(std::function<Result(std::int64_t)> make, Options options)
      : work_(std::make_shared<detail::OrderedWork<Result>>(std::move(make), options)),
        on_left_behind_(options.on_left_behind) {
    D9D_ASSERT(options.num_workers >= 1 && options.num_ahead >= 0, "no workers");
    for (std::size_t i = 0; i < static_cast<std::size_t>(options.num_workers); ++i) {
      threads_.emplace_back([work = work_, i](const std::stop_token& stop) { work->work(i, stop); });
    }
  }

  // Starts no further calls of `make` and waits for those that have begun: up to Options::patience, or not at all if
  // the last take_within() returned nullopt. Threads that the destructor abandons keep `make`, and the objects that
  // `make` owns, alive until they return.
  ~OrderedWorkers() {
    for (std::jthread& thread : threads_) thread.request_stop();
    const std::vector<std::optional<std::int64_t>> still_making = work_->still_making();
    std::vector<std::int64_t> left_behind;
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      if (!still_making[i]) continue;
      threads_[i].detach();
      left_behind.push_back(*still_making[i]);
    }
    std::ranges::sort(left_behind);
    try {
      if (!left_behind.empty() && on_left_behind_) on_left_behind_(left_behind);
    } catch (...) {  // a failing log must not end the program
    }
  }
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  // Returns the next result, in order. If `make` threw for it, rethrows the exception, also in each later call.
  [[nodiscard]] Result take() {
    while (true) {
      if (std::optional<Result> result = work_->take({})) return std::move(*result);
    }
  }
  // Returns the next result like take(), or nullopt if a positive timeout passes first, or if Options::patience has
  // passed since the job was asked to stop. The next call then waits for the same result again.
  [[nodiscard]] std::optional<Result> take_within(const ResultWait& wait) { return work_->take(wait); }
  [[nodiscard]] std::optional<Result> take_within(std::chrono::duration<double> timeout) {
    return work_->take({.timeout = timeout});
  }
  // If the result that take() returns next is ready, calls read(result) with it. Does not wait for the result.
  template <class Read>
  void look(const Read& read) const {
    work_->look(read);
  }

 private:
  std::shared_ptr<detail::OrderedWork<Result>> work_;
  std::function<void(const std::vector<std::int64_t>&)> on_left_behind_;
  std::vector<std::jthread> threads_;
};

}  // namespace d9d
