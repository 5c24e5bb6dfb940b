#include "d9d/core/device/allocated_bytes.h"

#include <map>
#include <mutex>

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace d9d {
namespace {

constexpr auto kKind = c10::DebugInfoKind::PROFILER_STATE;  // the slot of LibTorch's observer of allocations

}  // namespace

struct AllocatedBytes::OfThread {
  class Recorder final : public c10::MemoryReportingInfoBase {
   public:
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }

    void reportMemoryUsage(void* data, std::int64_t bytes, std::size_t total_allocated, std::size_t total_reserved,
                           c10::Device device) override {
      if (outer_) outer_->reportMemoryUsage(data, bytes, total_allocated, total_reserved, device);
      if (!device.is_cpu()) return;
      const std::lock_guard lock(mutex_);
      if (bytes > 0) {
        sizes_[data] = bytes;
        live_ += bytes;
      } else if (const auto found = sizes_.find(data); found != sizes_.end()) {
        live_ -= found->second;
        sizes_.erase(found);
      }
    }

    [[nodiscard]] std::int64_t live() const {
      const std::lock_guard lock(mutex_);
      return live_;
    }

   private:
    // The enclosing scope, or another observer of this thread's allocations. Null if there is none.
    c10::MemoryReportingInfoBase* const outer_ =
        dynamic_cast<c10::MemoryReportingInfoBase*>(c10::ThreadLocalDebugInfo::get(kKind));
    mutable std::mutex mutex_;  // LibTorch's threads that work for this thread use the recorder too
    std::map<void*, std::int64_t> sizes_;
    std::int64_t live_ = 0;
  };

  const std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
  const c10::DebugInfoGuard guard{kKind, recorder};
};

AllocatedBytes::AllocatedBytes(c10::Device device)
    : device_(device), of_thread_(device.is_cpu() ? std::make_unique<OfThread>() : nullptr) {}

AllocatedBytes::~AllocatedBytes() = default;

std::int64_t AllocatedBytes::now() const {
  constexpr std::size_t kAll = 0;  // small and large blocks together
  if (of_thread_) return of_thread_->recorder->live();
  return c10::getDeviceAllocator(device_.type())->getDeviceStats(device_.index()).allocated_bytes[kAll].current;
}

}  // namespace d9d
