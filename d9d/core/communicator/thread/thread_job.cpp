#include "d9d/core/communicator/thread/thread_job.h"

#include "d9d/core/communicator/thread/thread_communicator.h"

namespace d9d {

std::shared_ptr<ThreadRendezvous> ThreadJob::rendezvous(const RankGroup& group) {
  const std::lock_guard lock(mutex_);
  auto& rendezvous = rendezvous_[{group.ranks, group.traffic, group.lane}];
  if (rendezvous == nullptr) {
    rendezvous = std::make_shared<ThreadRendezvous>(group.name, group.ranks);
    if (!abort_reason_.empty()) rendezvous->abort(abort_reason_);
    for (const std::int64_t rank : left_) rendezvous->end(rank);
  }
  return rendezvous;
}

void ThreadJob::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (abort_reason_.empty()) abort_reason_ = reason;
  for (const auto& [key, rendezvous] : rendezvous_) rendezvous->abort(reason);
}

void ThreadJob::leave(std::int64_t rank) {
  const std::lock_guard lock(mutex_);
  left_.insert(rank);
  for (const auto& [key, rendezvous] : rendezvous_) rendezvous->end(rank);
}

std::shared_ptr<Communicator> ThreadBackend::connect(RankGroup group, std::chrono::milliseconds timeout) {
  auto rendezvous = job_->rendezvous(group);
  return std::make_shared<ThreadCommunicator>(std::move(group), std::move(rendezvous), device_, timeout);
}

std::shared_ptr<World> one_rank_world(at::Device device) {
  return std::make_shared<World>(std::make_unique<ThreadBackend>(std::make_shared<ThreadJob>(1), 0, device));
}

}  // namespace d9d
