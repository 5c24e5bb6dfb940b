#include "d9d/core/device/meta_memory.h"

#include <atomic>
#include <utility>

#include <c10/core/Allocator.h>

#include "d9d/base/check.h"

namespace d9d {
class MetaMemory::CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& replaced) : before(replaced) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    const auto size = static_cast<std::int64_t>(bytes);
    const std::int64_t live = count->live += size;
    for (std::int64_t peak = count->peak; peak < live && !count->peak.compare_exchange_weak(peak, live);) {
    }
    return {nullptr, new Allocation{.count = count, .bytes = size}, &release, c10::Device(c10::kMeta)};
  }
  void copy_data(void* /*target*/, const void* /*source*/, std::size_t /*bytes*/) const override {}

  struct Count {
    std::atomic<std::int64_t> live = 0;
    std::atomic<std::int64_t> peak = 0;
  };

  c10::Allocator& before;
  const std::shared_ptr<Count> count = std::make_shared<Count>();

 private:
  struct Allocation {
    std::shared_ptr<Count> count;  // storages that outlive the scope still subtract their bytes from it
    std::int64_t bytes;
  };
  static void release(void* allocation) {
    const std::unique_ptr<Allocation> released(static_cast<Allocation*>(allocation));
    released->count->live -= released->bytes;
  }
};

MetaMemory::MetaMemory() {
  c10::Allocator* const before = c10::GetAllocator(c10::kMeta);
  D9D_CHECK(dynamic_cast<CountingAllocator*>(before) == nullptr, StateError,
            "[core::meta_memory] expected one MetaMemory at a time, got a second. End the first.");
  allocator_ = std::make_unique<CountingAllocator>(*before);
  c10::SetAllocator(c10::kMeta, allocator_.get());
}

MetaMemory::~MetaMemory() { c10::SetAllocator(c10::kMeta, &allocator_->before); }

std::int64_t MetaMemory::live_bytes() const { return allocator_->count->live; }
std::int64_t MetaMemory::peak_bytes() const { return allocator_->count->peak; }
void MetaMemory::reset_peak() { allocator_->count->peak = allocator_->count->live.load(); }

}  // namespace d9d
