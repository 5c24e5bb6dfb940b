#include "d9d/core/peer_memory/link_watch.h"

#include <exception>
#include <utility>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr std::chrono::milliseconds kBetweenChecks{500};  // between two checks

}  // namespace

LinkWatch::LinkWatch(std::shared_ptr<World> world) : world_(std::move(world)) {}

LinkWatch::~LinkWatch() {
  {
    const std::lock_guard lock(mutex_);
    must_stop_ = true;
    stop_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  if (abort_.joinable()) abort_.join();
}

void LinkWatch::add_link(const void* link, std::shared_ptr<Communicator> ranks, std::function<void()> end_waits,
                         std::function<Late()> late) {
  const std::lock_guard lock(mutex_);
  links_.insert_or_assign(
      link, Link{.ranks = std::move(ranks), .end_waits = std::move(end_waits), .late = std::move(late), .waits = {}});
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
}

void LinkWatch::remove_link(const void* link) {
  const std::lock_guard lock(mutex_);
  links_.erase(link);
}

LinkWatch::Wait LinkWatch::begin(const void* link, const std::string& what, Progress progress) {
  const std::lock_guard lock(mutex_);
  const auto found = links_.find(link);
  if (found == links_.end()) return next_++;
  const RankGroup& group = found->second.ranks->group();
  const auto rank = [&](std::int64_t index) { return group.ranks[static_cast<std::size_t>(index)]; };
  std::string text =
      cat("rank ", rank(group.index), " has waited ", static_cast<double>(world_->timeout().count()) / 1e3, " s for ",
          what, " rank ", rank(1 - group.index), ".");
  found->second.waits.push_back(
      {.number = next_, .text = std::move(text), .timeout = world_->timeout(), .progress = std::move(progress)});
  return next_++;
}

void LinkWatch::end(Wait wait) {
  const std::lock_guard lock(mutex_);
  for (auto& [key, link] : links_) {
    std::erase_if(link.waits, [&](const UnderWay& known) { return known.number == wait; });
  }
}

void LinkWatch::look() {
  for (auto& [key, link] : links_) {
    if (link.ranks->has_failed()) link.end_waits();
    std::erase_if(link.waits, [](const UnderWay& wait) { return wait.progress.is_over(); });
    for (UnderWay& wait : link.waits) {
      if (!wait.since && wait.progress.is_reached()) wait.since = Clock::now();
      abort_after(wait.since, wait.timeout, [&] { return cat("[pipelining::executor] ", wait.text); });
    }
    if (link.late) abort_if_late(link);
  }
}

void LinkWatch::abort_if_late(Link& link) {
  const Late late = link.late();
  if (late.ranks.empty()) {
    link.late_since.reset();
    return;
  }
  if (!link.late_since) link.late_since = Clock::now();
  abort_after(link.late_since, late.timeout, [&] {
    const RankGroup& group = link.ranks->group();
    const auto rank = [&](std::int64_t index) { return group.ranks[static_cast<std::size_t>(index)]; };
    std::string names;
    for (const std::int64_t index : late.ranks) names += cat(names.empty() ? "" : ", ", rank(index));
    return cat("[core::peer_memory] rank ", rank(group.index), " has waited ",
               static_cast<double>(late.timeout.count()) / 1e3, " s in group '", group.name, "' for copies of rank",
               late.ranks.size() > 1 ? "s " : " ", names, ".");
  });
}

void LinkWatch::abort_after(const std::optional<Clock::time_point>& since, std::chrono::milliseconds timeout,
                            const std::function<std::string()>& reason) {
  if (has_aborted_ || !since || Clock::now() - *since < timeout) return;
  has_aborted_ = true;
  abort_ = std::thread([world = world_, reason = reason()] {
    try {
      world->abort_after_wait(reason);
    } catch (const std::exception&) {  // the ranks know the reason; an error of the abort itself adds nothing
    }
  });
}

void LinkWatch::run() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, kBetweenChecks, [&] { return must_stop_; })) look();
}

}  // namespace d9d
