#include "d9d/core/communicator/world.h"

#include <set>

#include "d9d/base/check.h"

namespace d9d {

std::shared_ptr<Communicator> World::communicator(const RankGroup& group) {
  const auto found = communicators_.find({group.ranks, group.traffic, group.lane});
  if (found != communicators_.end()) return found->second;
  const std::set<std::int64_t> distinct(group.ranks.begin(), group.ranks.end());
  D9D_CHECK(distinct.size() == group.ranks.size() && !distinct.empty() && *distinct.begin() >= 0 &&
                *distinct.rbegin() < size(),
            ConfigError, "[core::world] expected distinct ranks in [0, ", size(), ") for group '", group.name,
            "', got others. Give each rank once.");
  D9D_CHECK(group.index >= 0 && group.index < std::ssize(group.ranks) &&
                group.ranks[static_cast<std::size_t>(group.index)] == rank(),
            ConfigError, "[core::world] expected index of rank ", rank(), " in group '", group.name, "', got ",
            group.index, ". Only its members make a group.");
  D9D_CHECK(is_connected_, StateError, "[core::world] expected a job whose communicators are connected, got group '",
            group.name, "' for the first time while they sleep. Call wake() of the job that put them to sleep, ",
            "or World::reconnect() if that job is gone.");
  return communicators_.emplace(Key(group.ranks, group.traffic, group.lane), backend_->connect(group, timeout_))
      .first->second;
}

void World::throw_if_failed() const {
  for (const auto& [key, communicator] : communicators_) communicator->throw_if_failed();
}

// All ranks visit their groups in the order of the keys, so that no ranks wait in a circle.
void World::disconnect() {
  D9D_CHECK(is_connected_, StateError, "[core::world] expected connected communicators, got some that sleep already.");
  for (const auto& [key, communicator] : communicators_) communicator->disconnect();
  is_connected_ = false;
}

void World::reconnect() {
  D9D_CHECK(!is_connected_, StateError, "[core::world] expected communicators that sleep, got connected ones.");
  for (const auto& [key, communicator] : communicators_) communicator->reconnect();
  is_connected_ = true;
}

void World::set_timeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  for (const auto& [key, communicator] : communicators_) communicator->set_timeout(timeout);
}

}  // namespace d9d
