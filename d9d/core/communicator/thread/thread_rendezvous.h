// A rendezvous of the threads of a group for one operation: all post their inputs, read each other's, and leave
// together. It also has mailboxes for messages between two threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"

namespace d9d {

// The input of one rank. The tensors remain the rank's own: peers read them until all have left.
struct Contribution {
  std::string operation;  // "all_reduce(sum, float [4, 8])": must be the same on all ranks
  at::Tensor input;
  std::vector<at::Tensor> inputs;
  std::vector<std::int64_t> splits;
};

// Shared by the threads of a group; thread-safe. `index` is the caller's rank in the group.
class ThreadRendezvous {
 public:
  using Clock = std::chrono::steady_clock;

  ThreadRendezvous(std::string name, std::vector<std::int64_t> ranks);

  // Posts the contribution, waits for all ranks and returns all contributions by rank, which stay valid until leave().
  // Throws CommunicationError, on all ranks alike, if operations differ or if a rank does not arrive in time.
  [[nodiscard]] const std::vector<Contribution>& arrive(std::int64_t index, Contribution contribution,
                                                        std::chrono::milliseconds timeout);
  // Waits until all ranks have called it. May be called between arrive and leave, once for each step of an operation.
  void synchronize(std::int64_t index, std::chrono::milliseconds timeout);
  // Waits until all ranks have finished reading; releases the caller's tensors.
  void leave(std::int64_t index, std::chrono::milliseconds timeout);

  void send(std::int64_t source, std::int64_t destination, at::Tensor message);
  // `operation`: what the caller waits for and its source, for error messages.
  [[nodiscard]] at::Tensor receive(std::int64_t source, std::int64_t destination, const std::string& operation,
                                   std::chrono::milliseconds timeout);

  // Throws CommunicationError if the group has failed; also fails it if the program of another rank has returned.
  void check_nobody_left(std::int64_t index);

  void abort(const std::string& reason);
  // Called when the program of a rank of the job has ended. If the rank belongs to the group, ranks that wait for it
  // fail.
  void end(std::int64_t job_rank);

 private:
  // All are called with mutex_ held.
  [[nodiscard]] std::optional<std::int64_t> who_ended() const;  // a rank that ended before the current gate
  [[nodiscard]] std::string missing_at(std::int64_t index, std::chrono::milliseconds waited) const;
  void wait_for_all(std::unique_lock<std::mutex>& lock, std::int64_t index, std::chrono::milliseconds timeout);
  void check_alive() const;
  [[nodiscard]] std::string who_differs() const;
  [[nodiscard]] std::string describe(std::int64_t index) const;

  const std::string name_;
  const std::vector<std::int64_t> ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Contribution> contributions_;
  std::vector<std::int64_t> num_operations_;  // operations that each rank has begun
  std::vector<bool> has_arrived_;             // whether each rank is at the current gate
  std::vector<bool> has_ended_;
  std::int64_t num_arrived_ = 0;
  std::int64_t gate_ = 0;                                                              // gates that all ranks passed
  std::map<std::pair<std::int64_t, std::int64_t>, std::deque<at::Tensor>> mailboxes_;  // by source and destination
  std::string failure_;                                                                // empty: none
};

}  // namespace d9d
