#include "d9d/core/communicator/thread/thread_rendezvous.h"

#include <algorithm>

#include "d9d/base/check.h"
#include "d9d/base/log.h"
#include "d9d/core/communicator/long_wait.h"

namespace d9d {

ThreadRendezvous::ThreadRendezvous(std::string name, std::vector<std::int64_t> ranks)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      contributions_(ranks_.size()),
      num_operations_(ranks_.size()),
      has_arrived_(ranks_.size()),
      has_ended_(ranks_.size()) {}

const std::vector<Contribution>& ThreadRendezvous::arrive(std::int64_t index, Contribution contribution,
                                                          std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  contributions_[index] = std::move(contribution);
  ++num_operations_[index];
  wait_for_all(lock, index, timeout);
  const std::string difference = who_differs();  // equal on all ranks, since contributions stay until all have left
  if (!difference.empty()) failure_ = difference;
  check_alive();
  return contributions_;
}

void ThreadRendezvous::leave(std::int64_t index, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  wait_for_all(lock, index, timeout);
  contributions_[index].input = at::Tensor();
  contributions_[index].inputs.clear();
}

void ThreadRendezvous::synchronize(std::int64_t index, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  wait_for_all(lock, index, timeout);
}

void ThreadRendezvous::wait_for_all(std::unique_lock<std::mutex>& lock, std::int64_t index,
                                    std::chrono::milliseconds timeout) {
  check_alive();
  const std::int64_t gate = gate_;
  has_arrived_[index] = true;
  if (++num_arrived_ == std::ssize(ranks_)) {
    num_arrived_ = 0;
    has_arrived_.assign(ranks_.size(), false);
    ++gate_;
    changed_.notify_all();
    return;
  }
  const bool is_first = num_arrived_ == 1;
  const auto has_news = [&] { return gate_ != gate || !failure_.empty() || who_ended().has_value(); };
  bool has_changed = changed_.wait_for(lock, long_wait(timeout), has_news);
  if (!has_changed) {
    if (is_first) write_line_to_stderr(missing_at(index, long_wait(timeout)));
    has_changed = changed_.wait_for(lock, timeout - long_wait(timeout), has_news);
  }
  if (gate_ != gate) return;
  check_alive();
  if (const auto ended = who_ended()) {
    failure_ = cat("[core::communicator] ", describe(index), " waits in group '", name_, "' for ", describe(*ended),
                   ", whose program has returned. All ranks must call the same collectives in the same order.");
    changed_.notify_all();
  } else if (!has_changed) {
    failure_ = missing_at(index, timeout);
    changed_.notify_all();
  }
  check_alive();
}

std::string ThreadRendezvous::missing_at(std::int64_t index, std::chrono::milliseconds waited) const {
  std::string missing;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (!has_arrived_[i]) missing += cat(missing.empty() ? "" : "; ", describe(static_cast<std::int64_t>(i)));
  }
  return cat("[core::communicator] ", describe(index), " waited ", static_cast<double>(waited.count()) / 1e3,
             " s in group '", name_, "' for: ", missing, ".");
}

std::optional<std::int64_t> ThreadRendezvous::who_ended() const {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (has_ended_[i] && !has_arrived_[i]) return static_cast<std::int64_t>(i);
  }
  return std::nullopt;
}

void ThreadRendezvous::end(std::int64_t job_rank) {
  const std::lock_guard lock(mutex_);
  const auto member = std::ranges::find(ranks_, job_rank);
  if (member == ranks_.end()) return;
  has_ended_[static_cast<std::size_t>(member - ranks_.begin())] = true;
  changed_.notify_all();
}

void ThreadRendezvous::check_nobody_left(std::int64_t index) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (!has_ended_[i] || static_cast<std::int64_t>(i) == index || !failure_.empty()) continue;
    failure_ = cat("[core::communicator] rank ", ranks_[static_cast<std::size_t>(index)], " waits in group '", name_,
                   "' for rank ", ranks_[i], ", whose program has returned.");
    changed_.notify_all();
  }
  check_alive();
}

void ThreadRendezvous::check_alive() const { D9D_CHECK(failure_.empty(), CommunicationError, failure_); }

std::string ThreadRendezvous::describe(std::int64_t index) const {
  const std::int64_t number = num_operations_[index];
  if (number == 0) return cat("rank ", ranks_[index], " (no operation yet)");
  return cat("rank ", ranks_[index], " at operation ", number, " ", contributions_[index].operation);
}

std::string ThreadRendezvous::who_differs() const {
  for (std::size_t i = 1; i < ranks_.size(); ++i) {
    if (contributions_[i].operation == contributions_[0].operation) continue;
    return cat("[core::communicator] expected the same operation on all ranks of group '", name_, "', got ",
               describe(0), ", ", describe(static_cast<std::int64_t>(i)),
               ". All ranks must call the same collectives in the same order.");
  }
  return {};
}

void ThreadRendezvous::send(std::int64_t source, std::int64_t destination, at::Tensor message) {
  const std::lock_guard lock(mutex_);
  check_alive();
  mailboxes_[{source, destination}].push_back(std::move(message));
  changed_.notify_all();
}

at::Tensor ThreadRendezvous::receive(std::int64_t source, std::int64_t destination, const std::string& operation,
                                     std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  auto& mailbox = mailboxes_[{source, destination}];
  const auto has_ended = [&] { return has_ended_[static_cast<std::size_t>(source)]; };
  const bool has_come =
      changed_.wait_for(lock, timeout, [&] { return !mailbox.empty() || !failure_.empty() || has_ended(); });
  if (mailbox.empty() && failure_.empty() && has_ended()) {
    failure_ = cat("[core::communicator] rank ", ranks_[destination], " waits in group '", name_, "' for ", operation,
                   ", whose program has returned.");
    changed_.notify_all();
  } else if (!has_come) {
    failure_ = cat("[core::communicator] rank ", ranks_[destination], " waited ",
                   static_cast<double>(timeout.count()) / 1e3, " s in group '", name_, "' for ", operation, ".");
    changed_.notify_all();
  }
  if (mailbox.empty()) check_alive();
  at::Tensor message = std::move(mailbox.front());
  mailbox.pop_front();
  return message;
}

void ThreadRendezvous::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = reason;
  changed_.notify_all();
}

}  // namespace d9d
