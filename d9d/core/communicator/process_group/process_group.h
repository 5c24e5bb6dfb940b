// One of LibTorch's process groups (c10d), and a function that makes its pending operations fail.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace d9d {

// Arguments of a process group. The ranks meet through `store`, which belongs to this group alone.
struct ProcessGroupOptions {
  std::string name;
  std::vector<std::int64_t> ranks;  // ranks of the job
  std::int64_t index = 0;           // ranks[index] is this rank
  std::chrono::milliseconds timeout;
};

struct ProcessGroup {
  c10::intrusive_ptr<c10d::Backend> backend;
  // Thread-safe. Pending operations of this rank, and those of ranks that wait for it, fail immediately.
  std::function<void()> interrupt;
};

// Collective. Throws c10::Error.
using MakeProcessGroup =
    std::function<ProcessGroup(const c10::intrusive_ptr<c10d::Store>& store, const ProcessGroupOptions& options)>;

}  // namespace d9d
