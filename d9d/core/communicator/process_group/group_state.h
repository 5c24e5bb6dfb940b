// The position of this rank in a group's sequence of operations, and the failure that ended the group. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/communicator/process_group/process_group.h"

namespace c10d {
class Work;
}

namespace d9d {

// The latest operation that a rank has begun in a group.
struct Position {
  std::int64_t number = 0;  // from 1 on; 0: none yet
  std::string operation;
};
[[nodiscard]] std::string to_string(const Position& position);  // "at operation 3 barrier()"

struct GroupFailure {
  std::string reason;   // one line, without "[core::communicator]"
  bool is_own = false;  // this rank detected it
};

class GroupState {
 public:
  // `key` identifies the group within the job.
  GroupState(std::string key, RankGroup group, ProcessGroup process_group);
  // Shuts the backend down, unless the group has failed. A backend with an operation that never ends stays until the
  // process ends.
  ~GroupState();
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  [[nodiscard]] const std::string& key() const { return key_; }
  [[nodiscard]] const RankGroup& group() const { return group_; }
  [[nodiscard]] std::int64_t job_rank() const { return group_.ranks[static_cast<std::size_t>(group_.index)]; }
  [[nodiscard]] c10d::Backend& backend() const { return *process_group_.backend; }
  // To be called by the thread that runs the operations, as backend(). check_open() throws StateError while the group
  // is closed.
  [[nodiscard]] bool is_open() const { return process_group_.backend != nullptr; }
  void check_open() const;
  // Whether the backend has noticed a failure. On any thread; false while the group is closed.
  [[nodiscard]] bool has_backend_failed() const;

  // close() shuts the backend down and frees it, when no operation is in flight on any rank; open() gives the group
  // another one. Positions and failures stay.
  void close();
  void open(ProcessGroup process_group);

  Position begin(const std::string& operation);
  [[nodiscard]] Position position() const;

  // Records the failure, unless one is recorded already; then makes pending operations fail.
  void fail(const GroupFailure& failure);
  // The two halves of fail(): record() stores the failure, interrupt() makes pending operations fail and may wait for
  // the device.
  [[nodiscard]] bool record(const GroupFailure& failure);  // false: one was recorded already
  void interrupt();
  [[nodiscard]] std::optional<GroupFailure> failure(std::chrono::milliseconds patience = {}) const;

  // Waits for a collective of CPU tensors. Throws std::runtime_error soon after a failure of the group, even if the
  // operation does not end: if a connection closes just as the peer asks for a send, Gloo forgets that send, and only
  // its timeout would end it. Calls `after_long_wait` once if the wait lasts longer than `patience`.
  [[nodiscard]] bool wait(
      c10d::Work& work, std::chrono::milliseconds patience = std::chrono::hours(10'000),
      const std::function<void()>& after_long_wait = [] {});
  // Registers the work of a message. A failure of the group aborts the work, so that its wait() returns false.
  void abort_on_failure(const c10::intrusive_ptr<c10d::Work>& work);

 private:
  const std::string key_;
  const RankGroup group_;
  ProcessGroup process_group_;
  mutable std::mutex mutex_;
  mutable std::condition_variable failed_;
  Position position_;
  std::optional<GroupFailure> failure_;
  std::vector<c10::weak_intrusive_ptr<c10d::Work>> messages_;  // aborted by a failure
  bool never_ends_ = false;                                    // an operation of the backend does not end
};

}  // namespace d9d
