// The peak memory of tensors that a piece of code needs on a CPU.
//
// Example
//   const MemoryPeak memory;
//   loss_of(model).backward();
//   EXPECT_EQ(memory.peak_bytes(), expected);
//
// Counts what LibTorch's CPU allocator allocates on this thread while the scope lives, starting from 0 at its
// construction. Releases count if they happen on this thread and belong to memory that was counted. Backward of CPU
// tensors runs on the calling thread, so it counts. Scopes nest; an outer scope includes the inner ones. A scope must
// end on the thread where it began.
//
// Not counted:
//   memory that existed before, nor its release
//   other threads: ranks that are threads each have a scope of their own; allocations of at::parallel_for bodies on its
//     workers are not counted, and a tensor that another thread releases stays counted here
//   other memory than tensors: std::vector, the nodes of autograd, threads' stacks, code
//   storage from elsewhere than the allocator: from_blob, mapped files, slots that a tensor only refers to
//   the allocator's alignment and malloc's overhead: sizes are those requested
//   GPUs, which have at::cuda statistics of their own
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace d9d::test {

class MemoryPeak {
 public:
  MemoryPeak() : guard_(kKind, recorder_) {}

  // Bytes allocated in this scope and not yet released.
  [[nodiscard]] std::int64_t live_bytes() const { return recorder_->read(&Recorder::live); }
  // The maximum of live_bytes() so far.
  [[nodiscard]] std::int64_t peak_bytes() const { return recorder_->read(&Recorder::peak); }

 private:
  static constexpr auto kKind = c10::DebugInfoKind::PROFILER_STATE;

  class Recorder final : public c10::MemoryReportingInfoBase {
   public:
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }

    void reportMemoryUsage(void* data, std::int64_t bytes, std::size_t total_allocated, std::size_t total_reserved,
                           c10::Device device) override {
      if (outer) outer->reportMemoryUsage(data, bytes, total_allocated, total_reserved, device);
      if (!device.is_cpu()) return;
      const std::lock_guard lock(mutex);
      if (bytes > 0) {
        sizes[data] = bytes;
        live += bytes;
        peak = std::max(peak, live);
      } else if (const auto found = sizes.find(data); found != sizes.end()) {
        live -= found->second;
        sizes.erase(found);
      }
    }

    [[nodiscard]] std::int64_t read(std::int64_t Recorder::*value) const {
      const std::lock_guard lock(mutex);
      return this->*value;
    }

    // The enclosing scope, or another observer of this thread's allocations. Null if there is none.
    c10::MemoryReportingInfoBase* const outer =
        dynamic_cast<c10::MemoryReportingInfoBase*>(c10::ThreadLocalDebugInfo::get(kKind));
    mutable std::mutex mutex;  // LibTorch passes the recorder on to threads that it starts for this one
    std::map<void*, std::int64_t> sizes;
    std::int64_t live = 0;
    std::int64_t peak = 0;
  };

  const std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();
  const c10::DebugInfoGuard guard_;
};

}  // namespace d9d::test
