#include "d9d/core/communicator/process_group/group_state.h"

#include <algorithm>
#include <utility>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "d9d/base/check.h"

namespace d9d {
namespace {

// How often a waiting rank checks its group for a failure.
constexpr std::chrono::milliseconds kLookPeriod{1000};
// How long an operation may take to end after its group has failed.
constexpr std::chrono::milliseconds kEndDelay{2000};

}  // namespace

std::string to_string(const Position& position) {
  if (position.number == 0) return "(no operation yet)";
  return cat("at operation ", position.number, " ", position.operation);
}

GroupState::GroupState(std::string key, RankGroup group, ProcessGroup process_group)
    : key_(std::move(key)), group_(std::move(group)), process_group_(std::move(process_group)) {}

GroupState::~GroupState() {
  if (never_ends_) (void)process_group_.backend.release();  // its destructor would wait for the operation
  if (failure_ || !is_open()) return;
  try {
    process_group_.backend->shutdown();
  } catch (const std::exception&) {  // no operation waits for the group any more
  }
}

void GroupState::check_open() const {
  D9D_CHECK(is_open(), StateError, "[core::communicator] expected group '", group_.name,
            "' to be connected, got an operation while the communicators sleep. Call ",
            "wake() of the job that put them to sleep, or World::reconnect() if that job is gone.");
}

bool GroupState::has_backend_failed() const {
  const std::lock_guard lock(mutex_);
  return is_open() && process_group_.backend->getError() != c10d::ErrorType::SUCCESS;
}

void GroupState::close() {
  ProcessGroup closing;
  {
    const std::lock_guard lock(mutex_);
    closing = std::exchange(process_group_, {});
    messages_.clear();
  }
  closing.backend->shutdown();
}

void GroupState::open(ProcessGroup process_group) {
  const std::lock_guard lock(mutex_);
  process_group_ = std::move(process_group);
}

Position GroupState::begin(const std::string& operation) {
  const std::lock_guard lock(mutex_);
  position_ = {.number = position_.number + 1, .operation = operation};
  return position_;
}

Position GroupState::position() const {
  const std::lock_guard lock(mutex_);
  return position_;
}

void GroupState::fail(const GroupFailure& failure) {
  if (record(failure)) interrupt();
}

bool GroupState::record(const GroupFailure& failure) {
  const std::lock_guard lock(mutex_);
  if (failure_) return false;
  failure_ = failure;
  failed_.notify_all();
  return true;
}

void GroupState::interrupt() {
  std::function<void()> interrupt_backend;
  {
    const std::lock_guard lock(mutex_);
    interrupt_backend = process_group_.interrupt;
  }
  try {
    if (interrupt_backend) interrupt_backend();
  } catch (
      const c10::Error&) {  // NCCL did not end in time, as with a stopped rank; operations throw the recorded failure
  }
  const std::lock_guard lock(mutex_);
  for (const auto& message : messages_) {
    if (const auto work = message.lock()) work->abort();
  }
}

bool GroupState::wait(c10d::Work& work, std::chrono::milliseconds patience,
                      const std::function<void()>& after_long_wait) {
  const auto begin = std::chrono::steady_clock::now();
  bool was_long = false;
  while (true) {
    const bool has_failed = failure().has_value();
    try {
      return work.wait(has_failed ? kEndDelay : was_long ? kLookPeriod : std::min(kLookPeriod, patience));
    } catch (const c10::Error&) {  // the operation failed, or only this wait timed out
      if (work.isCompleted()) return work.wait();
    }
    if (!was_long && std::chrono::steady_clock::now() - begin >= patience) {
      was_long = true;
      after_long_wait();
    }
    if (!has_failed) continue;
    never_ends_ = true;
    throw std::runtime_error("a connection of the group closed");
  }
}

void GroupState::abort_on_failure(const c10::intrusive_ptr<c10d::Work>& work) {
  const std::lock_guard lock(mutex_);
  std::erase_if(messages_, [](const auto& message) { return message.expired(); });
  messages_.emplace_back(work);
  if (failure_) work->abort();
}

std::optional<GroupFailure> GroupState::failure(std::chrono::milliseconds patience) const {
  std::unique_lock lock(mutex_);
  if (patience.count() > 0) failed_.wait_for(lock, patience, [&] { return failure_.has_value(); });
  return failure_;
}

}  // namespace d9d
