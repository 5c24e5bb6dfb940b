#include "d9d/core/communicator/process_group/group_state.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "d9d/base/check.h"

namespace d9d {

std::string to_string(const Position& position) {
  if (position.number == 0) return "(no operation yet)";
  return cat("at operation ", position.number, " ", position.operation);
}

GroupState::GroupState(std::string key, RankGroup group, ProcessGroup process_group)
    : key_(std::move(key)), group_(std::move(group)), process_group_(std::move(process_group)) {}

GroupState::~GroupState() {
  if (failure_) return;
  try {
    process_group_.backend->shutdown();
  } catch (const std::exception&) {  // no operation waits for the group any more
  }
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
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = failure;
    failed_.notify_all();
  }
  process_group_.interrupt();
}

std::optional<GroupFailure> GroupState::failure(std::chrono::milliseconds patience) const {
  std::unique_lock lock(mutex_);
  if (patience.count() > 0) failed_.wait_for(lock, patience, [&] { return failure_.has_value(); });
  return failure_;
}

}  // namespace d9d
