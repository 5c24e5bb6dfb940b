// Makes the communicators of a job: one for each set of ranks, kind of traffic and lane.
//
// Example
//   World world(backend);
//   const auto pair = world.communicator({.name = "pair", .ranks = {0, 3}, .index = 0});
//
// A communicator is made at its first use, with the timeout that is set at that time. Two groups of the same ranks in
// the same order with the same traffic and lane share one communicator, under the name of the first.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "d9d/core/communicator/communicator.h"

namespace d9d {

// One rank's access to a means of communication: threads, Gloo or NCCL.
class CommunicatorBackend {
 public:
  virtual ~CommunicatorBackend() = default;
  [[nodiscard]] virtual std::int64_t rank() const = 0;
  [[nodiscard]] virtual std::int64_t world_size() const = 0;
  [[nodiscard]] virtual at::Device device() const = 0;
  // Collective over the group.
  [[nodiscard]] virtual std::shared_ptr<Communicator> connect(RankGroup group, std::chrono::milliseconds timeout) = 0;
  // Local. Tells all ranks that this rank cannot continue; their pending and later operations fail with `reason`.
  virtual void abort(const std::string& reason) = 0;
  // Local. Does the work of abort() for a rank that has waited too long. If ranks are processes, the reason also names
  // ranks that do not answer within a second, such as stopped ones.
  virtual void abort_after_wait(const std::string& reason) { this->abort(reason); }
  // Local. Called when this rank's program has returned: other ranks that wait for this one fail.
  virtual void leave() = 0;
};

class World {
 public:
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::seconds(10000);

  explicit World(std::unique_ptr<CommunicatorBackend> backend) : backend_(std::move(backend)) {}

  [[nodiscard]] std::int64_t rank() const { return backend_->rank(); }
  [[nodiscard]] std::int64_t size() const { return backend_->world_size(); }
  [[nodiscard]] at::Device device() const { return backend_->device(); }

  // Collective over the group at its first use. Throws ConfigError unless ranks are distinct, within the job, and
  // ranks[index] is this rank.
  [[nodiscard]] std::shared_ptr<Communicator> communicator(const RankGroup& group);

  // The index, 0 or 1, of the computation that the caller issues, if two run at the same time; otherwise 0. Code that
  // communicates in both uses the communicators of its lane (DeviceMesh::lane_communicator), since on a shared
  // communicator the computations would wait for each other. Local, but all ranks of a group must be in the same lane
  // when they communicate. A forward, its backward and the recomputation of its checkpoints are in one lane.
  [[nodiscard]] std::int64_t lane() const { return lane_; }
  void set_lane(std::int64_t lane) { lane_ = lane; }

  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }
  // Local. Sets the timeout of all communicators, present and future.
  void set_timeout(std::chrono::milliseconds timeout);
  void abort(const std::string& reason) { backend_->abort(reason); }
  void abort_after_wait(const std::string& reason) { backend_->abort_after_wait(reason); }
  // Local. Called when this rank's program has returned without an error: other ranks that wait for an operation which
  // this rank has not called fail immediately.
  void leave() { backend_->leave(); }
  // Local. Calls throw_if_failed() of all communicators. Used for values that crossed several communicators.
  void throw_if_failed() const;
  // Collective over the job, when no operation is in flight on any rank: all communicators give back what they hold on
  // devices and in the network (NCCL: hundreds of MB a rank). Their objects stay, and all operations throw StateError
  // until reconnect(), which is collective too. The host waits for all ranks.
  void disconnect();
  void reconnect();
  [[nodiscard]] bool is_connected() const { return is_connected_; }
  // Local. Releases all communicators; those that have other owners still work.
  void close() { communicators_.clear(); }

 private:
  std::unique_ptr<CommunicatorBackend> backend_;
  std::chrono::milliseconds timeout_ = kDefaultTimeout;
  using Key = std::tuple<std::vector<std::int64_t>, Traffic, std::int64_t>;
  std::map<Key, std::shared_ptr<Communicator>> communicators_;
  std::int64_t lane_ = 0;
  bool is_connected_ = true;
};

}  // namespace d9d
