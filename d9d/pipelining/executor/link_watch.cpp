#include "d9d/pipelining/executor/link_watch.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr std::chrono::milliseconds kPeriod{500};  // between two looks

bool has_failed(Communicator& ranks) {
  try {
    ranks.throw_if_failed();
    return false;
  } catch (const CommunicationError&) {
    return true;
  }
}

}  // namespace

LinkWatch::LinkWatch(std::shared_ptr<World> world) : world_(std::move(world)), thread_([this] { run(); }) {}

LinkWatch::~LinkWatch() {
  {
    const std::lock_guard lock(mutex_);
    must_stop_ = true;
    stop_.notify_all();
  }
  thread_.join();
  if (abort_.joinable()) abort_.join();
}

void LinkWatch::add_link(const void* link, std::shared_ptr<Communicator> ranks, std::function<void()> end_waits) {
  const std::lock_guard lock(mutex_);
  links_.insert_or_assign(link, Link{.ranks = std::move(ranks), .end_waits = std::move(end_waits)});
}

void LinkWatch::remove_link(const void* link) {
  const std::lock_guard lock(mutex_);
  links_.erase(link);
}

LinkWatch::Wait LinkWatch::begin(const std::string& what, const Communicator& ranks, StreamEvent reached) {
  std::string text = cat("rank ", ranks.group().ranks[static_cast<std::size_t>(ranks.rank())], " has waited ",
                         static_cast<double>(world_->timeout().count()) / 1e3, " s for ", what, " rank ",
                         ranks.group().ranks[static_cast<std::size_t>(1 - ranks.rank())], ".");
  UnderWay wait{.text = std::move(text), .timeout = world_->timeout(), .reached = std::move(reached)};
  if (wait.reached.is_complete()) wait.since = Clock::now();
  const std::lock_guard lock(mutex_);
  waits_.emplace(next_, std::move(wait));
  return next_++;
}

void LinkWatch::end(Wait wait, const StreamEvent& done) {
  const std::lock_guard lock(mutex_);
  waits_.at(wait).done = done;
}

// Asks the device without the mutex. While NCCL aborts, the device may answer nobody until the waits of links have
// ended; a host that adds a wait meanwhile must not be held up.
void LinkWatch::look(std::unique_lock<std::mutex>& lock) {
  for (const auto& [key, link] : links_) {
    if (has_failed(*link.ranks)) link.end_waits();
  }
  const std::map<Wait, UnderWay> known = waits_;
  lock.unlock();
  std::vector<Wait> done, reached;
  for (const auto& [number, wait] : known) {
    if (wait.done && wait.done->is_complete()) {
      done.push_back(number);
    } else if (!wait.since && wait.reached.is_complete()) {
      reached.push_back(number);
    }
  }
  lock.lock();
  for (const Wait number : done) waits_.erase(number);
  for (const Wait number : reached) waits_.at(number).since = Clock::now();
  abort_if_too_long();
}

void LinkWatch::abort_if_too_long() {
  const auto is_too_long = [](const auto& wait) {
    return wait.second.since && Clock::now() - *wait.second.since >= wait.second.timeout;
  };
  const auto found = std::ranges::find_if(waits_, is_too_long);
  if (has_aborted_ || found == waits_.end()) return;
  has_aborted_ = true;
  abort_ = std::thread([world = world_, reason = cat("[pipelining::executor] ", found->second.text)] {
    try {
      world->abort(reason);
    } catch (const std::exception&) {  // the ranks know the reason; what followed is the library's
    }
  });
}

void LinkWatch::run() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, kPeriod, [&] { return must_stop_; })) look(lock);
}

}  // namespace d9d
