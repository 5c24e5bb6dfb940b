// Ranks that are processes: they meet through a store that all can reach, and communicate by LibTorch's process groups.
//
// Example
//   World world(std::make_unique<ProcessGroupBackend>(ProcessGroupBackend::Options{
//       .store = store, .rank = 1, .world_size = 4, .make_group = gloo_groups("127.0.0.1")}));
//
// watchdog.h describes how and when a rank is informed of the failure of another. Ranks that are only affected by the
// failure of another rank throw PeerFailedError. The process ignores SIGPIPE from its first backend on
// (closed_connections.h).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "d9d/core/communicator/process_group/process_group.h"
#include "d9d/core/communicator/process_group/watchdog.h"
#include "d9d/core/communicator/world.h"

namespace d9d {

class StoreBarrier;

class ProcessGroupBackend final : public CommunicatorBackend {
 public:
  struct Options {
    std::shared_ptr<void> membership;       // released after everything that uses the store
    c10::intrusive_ptr<c10d::Store> store;  // shared by all ranks of the job
    std::int64_t rank = 0;
    std::int64_t world_size = 1;
    at::Device device = at::kCPU;
    MakeProcessGroup make_group;
  };

  explicit ProcessGroupBackend(Options options);
  ~ProcessGroupBackend() override;

  [[nodiscard]] std::int64_t rank() const override { return options_.rank; }
  [[nodiscard]] std::int64_t world_size() const override { return options_.world_size; }
  [[nodiscard]] at::Device device() const override { return options_.device; }
  // Waits for all ranks of the group; throws CommunicationError that names those that are missing at the timeout.
  [[nodiscard]] std::shared_ptr<Communicator> connect(RankGroup group, std::chrono::milliseconds timeout) override;
  void abort(const std::string& reason) override { watch_->abort_job(reason); }  // thread-safe
  void abort_after_wait(const std::string& reason) override { watch_->abort_job_after_wait(reason); }
  void leave() override;

  // Collective over the group, without its communicator. meet() waits for all ranks of the group; make_group() also
  // makes a process group of them, under a name in the store that no earlier one had. Both throw as connect().
  void meet(const RankGroup& group, const std::string& doing, std::chrono::milliseconds timeout);
  [[nodiscard]] ProcessGroup make_group(const RankGroup& group, std::chrono::milliseconds timeout);

 private:
  // Returns a key of the store for the next meeting of this group.
  [[nodiscard]] std::string next_key(const RankGroup& group);
  [[nodiscard]] ProcessGroup make_group_at(const std::string& key, const RankGroup& group,
                                           std::chrono::milliseconds timeout);
  // `who`: the beginning of the error messages of these functions.
  void check_job_alive(const std::string& who) const;
  void check_members_stay(const std::string& who, const StoreBarrier& barrier) const;
  void wait_for_members(const std::string& who, const std::string& key, const RankGroup& group,
                        std::chrono::milliseconds timeout);

  Options options_;
  std::shared_ptr<Watchdog> watch_;
  std::map<std::string, std::int64_t> num_meetings_;  // by ranks, traffic and lane
};

}  // namespace d9d
