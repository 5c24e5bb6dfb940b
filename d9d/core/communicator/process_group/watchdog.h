// Finds out why an operation failed, and makes sure that all ranks learn of it. A thread of each rank polls the store
// of the job while the rank computes or waits inside a library. It polls twice a second, and immediately when an
// operation fails.
//
// When a rank waits in a collective of CPU tensors, it learns of these failures:
// * another rank gave up (abort): immediately, with its reason, which is sent before its connections close;
// * a process died: immediately, by its closed connections; the ranks that do not answer within 1 s are named;
// * a rank hangs or computes for ever: after the timeout; the ranks that have not reached the operation are named;
// * a machine vanished: after the timeout; the ranks that have not reached the operation are named.
// On CUDA the thread aborts operations that wait, and the failure is reported by the next operation.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "d9d/core/communicator/process_group/group_state.h"
#include "d9d/core/communicator/process_group/mailbox.h"

namespace d9d {

struct FailedOperation {
  std::string where;                        // "at operation 3 barrier()"
  std::string cause;                        // the library's error, one line
  std::chrono::milliseconds timeout;        // the timeout that applied to the operation
  std::optional<std::string> awaited = {};  // for messages: what is missing, and from which rank
};

// Thread-safe.
class Watchdog {
 public:
  Watchdog(c10d::Store& store, std::int64_t rank, std::int64_t world_size);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(const std::shared_ptr<GroupState>& group);
  void abort_job(const std::string& reason);
  void abort_job_after_wait(const std::string& reason);  // appends the ranks that do not answer to the reason
  void abort_group(GroupState& group, const std::string& reason);
  [[nodiscard]] std::optional<GroupFailure> job_failure() const;
  // The reason that this rank sent to others if it was the first to abort a group or the job; none if another rank has
  // aborted the job.
  [[nodiscard]] std::optional<std::string> own_reason() const;

  // Called when an operation of the group failed. Returns the cause of the group's failure, which it determines
  // together with the other ranks of the group. Takes up to 5 s.
  [[nodiscard]] GroupFailure explain(GroupState& group, const FailedOperation& failed);
  // Writes a line on stderr that names the ranks which have not begun the operation. Only one of the waiting ranks
  // writes it.
  void tell_who_is_missing(const GroupState& group, const FailedOperation& operation, std::chrono::milliseconds waited);

 private:
  void listen();
  [[nodiscard]] bool obey(const std::string& message);  // false: stop
  [[nodiscard]] bool sleep();                           // false: stop
  void look_now();
  void fail_all(const GroupFailure& failure);
  void keep_own_reason(const std::string& reason);
  [[nodiscard]] std::vector<std::shared_ptr<GroupState>> groups() const;
  // Sends the message to the others among `ranks`, and returns those that have not answered in time.
  [[nodiscard]] std::vector<std::int64_t> ask(const std::vector<std::int64_t>& ranks, const std::string& message,
                                              const std::function<bool(std::int64_t rank)>& has_answered);
  [[nodiscard]] std::map<std::int64_t, Position> ask_positions(const GroupState& group);  // only ranks that answer
  [[nodiscard]] std::string diagnose(const GroupState& group, const FailedOperation& failed);
  [[nodiscard]] std::string ranks_without_answer();  // " No answer from rank 3: ..." over all ranks, or ""

  const std::int64_t rank_;
  const std::int64_t world_size_;
  Mailbox mailbox_;
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<GroupState>> groups_;
  std::optional<GroupFailure> job_failure_;
  std::optional<std::string> own_reason_;
  std::condition_variable wake_up_;
  bool must_look_ = false;
  bool must_stop_ = false;
  std::thread listener_;
};

// Tells the polling threads of ranks [0, world_size) that the store is about to close as planned.
void announce_end_of_store(c10d::Store& store, std::int64_t world_size);

}  // namespace d9d
