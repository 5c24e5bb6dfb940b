#include "d9d/core/communicator/process_group/process_group_backend.h"

#include <thread>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "d9d/base/check.h"
#include "d9d/base/fnv1a.h"
#include "d9d/core/communicator/peer_failed_error.h"
#include "d9d/core/communicator/process_group/closed_connections.h"
#include "d9d/core/communicator/process_group/process_group_communicator.h"
#include "d9d/core/communicator/process_group/store_barrier.h"

namespace d9d {
namespace {

// The name is short because the store limits the length of keys.
std::string name_of(const RankGroup& group) {
  return cat(group.ranks.front(), "+", group.ranks.size(), "-", std::hex, fnv1a(cat(at::IntArrayRef(group.ranks))), "-",
             static_cast<int>(group.traffic), "-", group.lane);
}

// Timeout of connecting after all ranks of the group have arrived.
constexpr std::chrono::milliseconds kConnectTimeout = std::chrono::seconds(60);

// How often a rank that waits for others looks for ranks that have left the job.
constexpr std::chrono::milliseconds kLeftPeriod{1000};
constexpr const char* kAnyLeft = "any_left";
std::string left_key(std::int64_t rank) { return cat("left/", rank); }

}  // namespace

ProcessGroupBackend::ProcessGroupBackend(Options options)
    : options_(std::move(options)),
      watch_(std::make_shared<Watchdog>(*options_.store, options_.rank, options_.world_size)) {
  survive_closed_connections();
}

ProcessGroupBackend::~ProcessGroupBackend() = default;

std::string ProcessGroupBackend::next_key(const RankGroup& group) {
  const std::string name = name_of(group);
  return cat(name, "-", num_meetings_[name]++);
}

std::shared_ptr<Communicator> ProcessGroupBackend::connect(RankGroup group, std::chrono::milliseconds timeout) {
  const std::string key = next_key(group);
  ProcessGroup process_group = make_group_at(key, group, timeout);
  const auto state = std::make_shared<GroupState>(key, std::move(group), std::move(process_group));
  watch_->add(state);
  return std::make_shared<ProcessGroupCommunicator>(state, watch_, *this, timeout);
}

void ProcessGroupBackend::meet(const RankGroup& group, const std::string& doing, std::chrono::milliseconds timeout) {
  const std::string who = cat("[core::communicator] rank ", rank(), " ", doing, " group '", group.name, "'");
  wait_for_members(who, next_key(group), group, timeout);
}

ProcessGroup ProcessGroupBackend::make_group(const RankGroup& group, std::chrono::milliseconds timeout) {
  return make_group_at(next_key(group), group, timeout);
}

ProcessGroup ProcessGroupBackend::make_group_at(const std::string& key, const RankGroup& group,
                                                std::chrono::milliseconds timeout) {
  const std::string who = cat("[core::communicator] rank ", rank(), " connecting group '", group.name, "'");
  wait_for_members(who, key, group, timeout);
  try {
    return options_.make_group(c10::make_intrusive<c10d::PrefixStore>(cat("group/", key), options_.store),
                               {.name = group.name,
                                .ranks = group.ranks,
                                .index = group.index,
                                .timeout = std::min(timeout, kConnectTimeout)});
  } catch (const c10::Error& error) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // a message with the reason may be in flight
    check_job_alive(who);
    const std::string text = error.what_without_backtrace();
    throw CommunicationError(cat(who, " failed: ", text.substr(0, text.find('\n')), "."));
  }
}

void ProcessGroupBackend::check_job_alive(const std::string& who) const {
  const auto failure = watch_->job_failure();
  if (!failure) return;
  const std::string text = cat(who, " failed: ", failure->reason);
  if (!failure->is_own) throw PeerFailedError(text);
  throw CommunicationError(text);
}

// Operations that wait for a rank that has left fail by themselves, since its connections close.
void ProcessGroupBackend::leave() {
  try {
    options_.store->set(left_key(rank()), std::string("left"));
    options_.store->set(kAnyLeft, std::string("left"));
  } catch (const c10::Error&) {  // the store is gone already, so no rank waits any more
  }
}

void ProcessGroupBackend::check_members_stay(const std::string& who, const StoreBarrier& barrier) const {
  if (!options_.store->check({kAnyLeft})) return;
  for (const std::int64_t member : barrier.missing_ranks()) {
    D9D_CHECK(!options_.store->check({left_key(member)}), CommunicationError, who, " waits for rank ", member,
              ", whose program has returned. All ranks must call the same collectives in the same order.");
  }
}

void ProcessGroupBackend::wait_for_members(const std::string& who, const std::string& key, const RankGroup& group,
                                           std::chrono::milliseconds timeout) {
  try {
    StoreBarrier barrier(*options_.store, cat("here/", key), group.ranks);
    barrier.arrive(rank());
    const auto start = std::chrono::steady_clock::now();
    auto next_look = start + kLeftPeriod;
    const bool is_complete = barrier.wait_until(start + timeout, [&] {
      check_job_alive(who);
      if (std::chrono::steady_clock::now() < next_look) return;
      next_look += kLeftPeriod;
      check_members_stay(who, barrier);
    });
    D9D_CHECK(is_complete, CommunicationError, who, " waited ", static_cast<double>(timeout.count()) / 1e3,
              " s for ranks: ", barrier.missing(), ".");
  } catch (const c10::Error&) {
    throw CommunicationError(
        cat(who, " lost the store of the job: the process that hosts it has ended or is out of reach."));
  }
}

}  // namespace d9d
