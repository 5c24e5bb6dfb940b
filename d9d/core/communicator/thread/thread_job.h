// The shared memory in which ranks that are threads of one process meet.
//
// Example
//   auto job = std::make_shared<ThreadJob>(/*world_size=*/4);
//   // on the thread of each rank:
//   World world(std::make_unique<ThreadBackend>(job, rank));
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "d9d/core/communicator/thread/thread_rendezvous.h"
#include "d9d/core/communicator/world.h"

namespace d9d {

// Shared by all ranks; thread-safe.
class ThreadJob {
 public:
  explicit ThreadJob(std::int64_t world_size) : world_size_(world_size) {}

  [[nodiscard]] std::int64_t world_size() const { return world_size_; }
  // Returns the rendezvous of the group's ranks for its traffic and lane; all of these ranks get the same object.
  [[nodiscard]] std::shared_ptr<ThreadRendezvous> rendezvous(const RankGroup& group);
  // Fails all meetings, present and future. Only the first reason is kept.
  void abort(const std::string& reason);
  // Fails meetings at which `rank` has not arrived, present and future.
  void leave(std::int64_t rank);

 private:
  const std::int64_t world_size_;
  std::mutex mutex_;
  std::set<std::int64_t> left_;                                              // ranks that have left
  using Key = std::tuple<std::vector<std::int64_t>, Traffic, std::int64_t>;  // ranks, traffic, lane
  std::map<Key, std::shared_ptr<ThreadRendezvous>> rendezvous_;
  std::string abort_reason_;  // empty: none
};

// Operations run on the calling thread and are complete when they return. Each operation checks that all ranks of the
// group called the same operation with the same dtypes and shapes, and names a rank that did not.
class ThreadBackend final : public CommunicatorBackend {
 public:
  // device: the device of all tensors. Devices other than the CPU are supported only for a job of one rank.
  ThreadBackend(std::shared_ptr<ThreadJob> job, std::int64_t rank, at::Device device = at::kCPU)
      : job_(std::move(job)), rank_(rank), device_(device) {}

  [[nodiscard]] std::int64_t rank() const override { return rank_; }
  [[nodiscard]] std::int64_t world_size() const override { return job_->world_size(); }
  [[nodiscard]] at::Device device() const override { return device_; }
  [[nodiscard]] std::shared_ptr<Communicator> connect(RankGroup group, std::chrono::milliseconds timeout) override;
  void abort(const std::string& reason) override { job_->abort(reason); }
  void leave() override { job_->leave(rank_); }

 private:
  std::shared_ptr<ThreadJob> job_;
  std::int64_t rank_;
  at::Device device_;
};

// The world of a job with one rank.
[[nodiscard]] std::shared_ptr<World> one_rank_world(at::Device device = at::kCPU);

}  // namespace d9d
