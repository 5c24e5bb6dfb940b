#include "d9d/core/device/allocated_bytes.h"

#include <algorithm>
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
        total_ += bytes;
        peak_ = std::max(peak_, live_);
      } else if (const auto found = sizes_.find(data); found != sizes_.end()) {
        live_ -= found->second;
        sizes_.erase(found);
      }
    }

    [[nodiscard]] std::int64_t live() const { return locked(live_); }
    [[nodiscard]] std::int64_t peak() const { return locked(peak_); }
    [[nodiscard]] std::int64_t total() const { return locked(total_); }
    void reset_peak() {
      const std::lock_guard lock(mutex_);
      peak_ = live_;
    }

   private:
    [[nodiscard]] std::int64_t locked(const std::int64_t& bytes) const {
      const std::lock_guard lock(mutex_);
      return bytes;
    }
    // The enclosing scope, or another observer of this thread's allocations. Null if there is none.
    c10::MemoryReportingInfoBase* const outer_ =
        dynamic_cast<c10::MemoryReportingInfoBase*>(c10::ThreadLocalDebugInfo::get(kKind));
    mutable std::mutex mutex_;  // LibTorch's threads that work for this thread use the recorder too
    std::map<void*, std::int64_t> sizes_;
    std::int64_t live_ = 0, peak_ = 0, total_ = 0;
  };

  const std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
  const c10::DebugInfoGuard guard{kKind, recorder};
};

namespace {

c10::CachingDeviceAllocator::Stat bytes_of(c10::Device device) {
  constexpr std::size_t kAll = 0;  // small and large blocks together
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes[kAll];
}

}  // namespace

AllocatedBytes::AllocatedBytes(c10::Device device)
    : device_(device),
      total_before_(device.is_cpu() ? 0 : bytes_of(device).allocated),
      of_thread_(device.is_cpu() ? std::make_unique<OfThread>() : nullptr) {}

AllocatedBytes::~AllocatedBytes() = default;

std::int64_t AllocatedBytes::now() const {
  return of_thread_ ? of_thread_->recorder->live() : bytes_of(device_).current;
}

std::int64_t AllocatedBytes::peak() const { return of_thread_ ? of_thread_->recorder->peak() : bytes_of(device_).peak; }

void AllocatedBytes::reset_peak() {
  if (of_thread_) return of_thread_->recorder->reset_peak();
  c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
}

std::int64_t AllocatedBytes::total() const {
  return of_thread_ ? of_thread_->recorder->total() : bytes_of(device_).allocated - total_before_;
}

}  // namespace d9d
