// Where the threads of a group come together for one operation: all post what they bring, read each other, and leave
// together. And mailboxes for messages between two of them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"

namespace d9d {

// What one rank brings. The tensors stay the rank's own: peers read them until it has left.
struct Contribution {
  std::string operation;  // "all_reduce(sum, float [4, 8])": must be the same on all ranks
  at::Tensor input;
  std::vector<at::Tensor> inputs;
  std::vector<std::int64_t> splits;
};

// Shared by the threads of a group; thread-safe. `index` is the caller's rank in the group.
class Meeting {
 public:
  using Clock = std::chrono::steady_clock;

  Meeting(std::string name, std::vector<std::int64_t> ranks);

  // Posts, waits for all and returns what each brought, by rank. Valid until leave(). Throws CommunicationError, on all
  // ranks alike, if operations differ, and if a rank does not come in time.
  [[nodiscard]] const std::vector<Contribution>& arrive(std::int64_t index, Contribution contribution,
                                                        std::chrono::milliseconds timeout);
  // Waits until all have come here: between arrive and leave, as often as an operation has steps.
  void synchronize(std::int64_t index, std::chrono::milliseconds timeout);
  // Waits until all are done with reading; forgets the caller's tensors.
  void leave(std::int64_t index, std::chrono::milliseconds timeout);

  void send(std::int64_t source, std::int64_t destination, at::Tensor message);
  // `operation`: what it waits for, with its source, for messages.
  [[nodiscard]] at::Tensor receive(std::int64_t source, std::int64_t destination, const std::string& operation,
                                   std::chrono::milliseconds timeout);

  void abort(const std::string& reason);

 private:
  // All with mutex_ held.
  void wait_for_all(std::unique_lock<std::mutex>& lock, std::int64_t index, std::chrono::milliseconds timeout);
  void check_alive() const;
  [[nodiscard]] std::string who_differs() const;
  [[nodiscard]] std::string describe(std::int64_t index) const;

  const std::string name_;
  const std::vector<std::int64_t> ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Contribution> contributions_;
  std::vector<std::int64_t> num_operations_;  // that each rank has begun
  std::vector<bool> has_arrived_;             // at the current gate
  std::int64_t num_arrived_ = 0;
  std::int64_t gate_ = 0;                                                              // gates that all have passed
  std::map<std::pair<std::int64_t, std::int64_t>, std::deque<at::Tensor>> mailboxes_;  // by source and destination
  std::string failure_;                                                                // empty: none
};

}  // namespace d9d
