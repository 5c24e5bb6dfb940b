// Lets ranks wait for each other at a store.
//
// Example
//   StoreBarrier barrier(*store, "joined", {0, 1, 2});
//   barrier.arrive(rank);
//   while (!barrier.are_complete()) std::this_thread::sleep_for(...);
//
// Polls instead of waiting inside the store: LibTorch logs a line for each wait that times out.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace d9d {

// Throws c10::Error if the store is gone.
class StoreBarrier {
 public:
  StoreBarrier(c10d::Store& store, std::string key, std::vector<std::int64_t> ranks);

  void arrive(std::int64_t rank);  // to be called once
  [[nodiscard]] bool are_complete() const;
  // Waits for the ranks and returns are_complete() when it is true, or at the deadline. Calls `between` repeatedly
  // while it waits.
  [[nodiscard]] bool wait_until(
      std::chrono::steady_clock::time_point deadline, const std::function<void()>& between = [] {}) const;
  [[nodiscard]] std::vector<std::int64_t> missing_ranks() const;
  [[nodiscard]] std::string missing() const;  // "1, 4"

 private:
  c10d::Store& store_;
  std::string key_;
  std::vector<std::int64_t> ranks_;
};

}  // namespace d9d
