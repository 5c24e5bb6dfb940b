// Finds out why an operation failed, and makes sure that all ranks hear of it: a thread of each rank listens at the
// store of the job while the rank computes or waits inside a library. It looks twice a second, and at once when an
// operation fails.
//
// What a rank that waits in a collective of CPU tensors learns:
// * another rank gave up (abort): its reason, at once, since its messages go before its connections close;
// * a process died: at once, by its closed connections; who does not answer within 1 s is named;
// * a rank hangs or computes for ever: after the timeout; who has not come to which operation is named;
// * a machine vanished: the same.
// On CUDA the thread ends operations that wait, and what failed shows at the next operation.
#pragma once

#include <condition_variable>
#include <cstdint>
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
  std::string cause;                        // of the library, one line
  std::chrono::milliseconds timeout;        // that it had
  std::optional<std::string> awaited = {};  // of a message: what did not come, and from whom
};

// Thread-safe.
class FailureWatch {
 public:
  FailureWatch(c10d::Store& store, std::int64_t rank, std::int64_t world_size);
  ~FailureWatch();
  FailureWatch(const FailureWatch&) = delete;
  FailureWatch& operator=(const FailureWatch&) = delete;

  void add(const std::shared_ptr<GroupState>& group);
  void abort_job(const std::string& reason);
  void abort_group(GroupState& group, const std::string& reason);
  [[nodiscard]] std::optional<GroupFailure> job_failure() const;

  // An operation of the group failed: the failure of the group, found together with its other ranks. Takes up to 4 s.
  [[nodiscard]] GroupFailure explain(GroupState& group, const FailedOperation& failed);

 private:
  void listen();
  [[nodiscard]] bool obey(const std::string& message);  // false: stop
  [[nodiscard]] bool sleep();                           // false: stop
  void look_now();
  void fail_all(const GroupFailure& failure);
  [[nodiscard]] std::vector<std::shared_ptr<GroupState>> groups() const;
  [[nodiscard]] std::map<std::int64_t, Position> ask_positions(const GroupState& group);  // of the ranks that answer
  [[nodiscard]] std::string diagnose(const GroupState& group, const FailedOperation& failed);

  const std::int64_t rank_;
  const std::int64_t world_size_;
  Mailbox mailbox_;
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<GroupState>> groups_;
  std::optional<GroupFailure> job_failure_;
  std::condition_variable wake_up_;
  bool must_look_ = false;
  bool must_stop_ = false;
  std::thread listener_;
};

// Tells the listeners of ranks [0, world_size) that the store goes away as planned.
void announce_end_of_store(c10d::Store& store, std::int64_t world_size);

}  // namespace d9d
