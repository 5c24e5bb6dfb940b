// How far this rank has come in a group, and why the group can go no further. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/communicator/process_group/process_group.h"

namespace d9d {

// The operation that a rank began last in a group.
struct Position {
  std::int64_t number = 0;  // from 1 on; 0: none yet
  std::string operation;
};
[[nodiscard]] std::string to_string(const Position& position);  // "at operation 3 barrier()"

struct GroupFailure {
  std::string reason;   // one line, without "[core::communicator]"
  bool is_own = false;  // this rank found it
};

class GroupState {
 public:
  // `key` names the group in the whole job.
  GroupState(std::string key, RankGroup group, ProcessGroup process_group);
  ~GroupState();  // ends the process group's threads
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  [[nodiscard]] const std::string& key() const { return key_; }
  [[nodiscard]] const RankGroup& group() const { return group_; }
  [[nodiscard]] std::int64_t job_rank() const { return group_.ranks[static_cast<std::size_t>(group_.index)]; }
  [[nodiscard]] c10d::Backend& backend() const { return *process_group_.backend; }

  Position begin(const std::string& operation);
  [[nodiscard]] Position position() const;

  // The first failure stays; makes operations that wait fail.
  void fail(const GroupFailure& failure);
  [[nodiscard]] std::optional<GroupFailure> failure(std::chrono::milliseconds patience = {}) const;

 private:
  const std::string key_;
  const RankGroup group_;
  const ProcessGroup process_group_;
  mutable std::mutex mutex_;
  mutable std::condition_variable failed_;
  Position position_;
  std::optional<GroupFailure> failure_;
};

}  // namespace d9d
