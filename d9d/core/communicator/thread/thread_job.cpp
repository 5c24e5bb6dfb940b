#include "d9d/core/communicator/thread/thread_job.h"

#include "d9d/core/communicator/thread/thread_communicator.h"

namespace d9d {

std::shared_ptr<Meeting> ThreadJob::meeting(const RankGroup& group) {
  const std::lock_guard lock(mutex_);
  auto& meeting = meetings_[{group.ranks, group.traffic}];
  if (meeting == nullptr) {
    meeting = std::make_shared<Meeting>(group.name, group.ranks);
    if (!abort_reason_.empty()) meeting->abort(abort_reason_);
  }
  return meeting;
}

void ThreadJob::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (abort_reason_.empty()) abort_reason_ = reason;
  for (const auto& [key, meeting] : meetings_) meeting->abort(reason);
}

std::shared_ptr<Communicator> ThreadBackend::connect(RankGroup group, std::chrono::milliseconds timeout) {
  auto meeting = job_->meeting(group);
  return std::make_shared<ThreadCommunicator>(std::move(group), std::move(meeting), device_, timeout);
}

std::shared_ptr<World> one_rank_world(at::Device device) {
  return std::make_shared<World>(std::make_unique<ThreadBackend>(std::make_shared<ThreadJob>(1), 0, device));
}

}  // namespace d9d
