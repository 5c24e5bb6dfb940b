#include "d9d/core/communicator/process_group/store_barrier.h"

#include <algorithm>
#include <thread>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "d9d/base/check.h"

namespace d9d {
namespace {

std::string rank_key(const std::string& key, std::int64_t rank) { return cat(key, "/", rank); }
std::string count_key(const std::string& key) { return key + "/count"; }
std::string all_key(const std::string& key) { return key + "/all"; }

}  // namespace

StoreBarrier::StoreBarrier(c10d::Store& store, std::string key, std::vector<std::int64_t> ranks)
    : store_(store), key_(std::move(key)), ranks_(std::move(ranks)) {}

void StoreBarrier::arrive(std::int64_t rank) {
  store_.set(rank_key(key_, rank), std::string("here"));
  if (store_.add(count_key(key_), 1) == std::ssize(ranks_)) store_.set(all_key(key_), std::string("here"));
}

bool StoreBarrier::are_complete() const { return store_.check({all_key(key_)}); }

bool StoreBarrier::wait_until(std::chrono::steady_clock::time_point deadline,
                              const std::function<void()>& between) const {
  constexpr std::chrono::milliseconds kLongestPause{50};
  std::chrono::milliseconds pause{1};
  while (!are_complete()) {
    between();
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

std::vector<std::int64_t> StoreBarrier::missing_ranks() const {
  std::vector<std::int64_t> missing;
  for (const std::int64_t rank : ranks_) {
    if (!store_.check({rank_key(key_, rank)})) missing.push_back(rank);
  }
  return missing;
}

std::string StoreBarrier::missing() const {
  std::string result;
  for (const std::int64_t rank : missing_ranks()) result += cat(result.empty() ? "" : ", ", rank);
  return result;
}

}  // namespace d9d
