#include "d9d/core/offload/offloaded_activation.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/strides.h>

#include "d9d/base/check.h"
#include "d9d/core/device/side_stream.h"

namespace d9d {
namespace {

constexpr std::size_t kInFlight = 4;  // tensors whose copies to the host no stream waits for yet

// Those of the tensor if a copy can have them without gaps, otherwise those of a contiguous one.
std::vector<std::int64_t> strides_of(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  const auto strides = c10::contiguous_strides(tensor.sizes());
  return {strides.begin(), strides.end()};
}

}  // namespace

// The copies of one tensor. Forward and backward may be different threads.
struct OffloadedActivation::Transfer {
  explicit Transfer(const at::Tensor& tensor)
      : options(tensor.options()),
        sizes(tensor.sizes().vec()),
        strides(strides_of(tensor)),
        version(tensor._version()),
        on_device(tensor) {}
  ~Transfer() {
    stored.wait();
    fetched.wait();
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Gives the device's memory back, once the tensor is on the host.
  void release() {
    const std::lock_guard lock(mutex);
    if (is_back) return;
    is_modified = is_modified || on_device._version() != version;
    stored.wait();
    on_device.reset();
  }
  void fetch() {
    if (on_device.defined()) return;
    on_device = at::empty_strided(sizes, strides, options);
    is_back = true;
    if (on_device.is_meta()) return;
    fetched = to_device->run([&] { on_device.copy_(on_host, /*non_blocking=*/true); });
  }

  const at::TensorOptions options;
  const std::vector<std::int64_t> sizes, strides;
  const std::uint32_t version;
  std::mutex mutex;      // of all that follows
  at::Tensor on_device;  // undefined while the tensor is on the host alone
  at::Tensor on_host;
  bool is_back = false;  // on_device is a copy of on_host
  bool is_modified = false;
  StreamEvent stored, fetched;
  std::shared_ptr<const SideStream> to_device;
};

// The streams of the copies that one thread begins.
class OffloadedActivation::Lane {
 public:
  explicit Lane(c10::Device device)
      : device_(device), to_host_(device), to_device_(std::make_shared<const SideStream>(device)) {}

  [[nodiscard]] static Lane& of(c10::Device device) {
    // lint: allow(thread-local): a lane orders what one thread stores; backward has its stream from Transfer
    thread_local std::unique_ptr<Lane> lane;
    if (!lane || lane->device_ != device) lane = std::make_unique<Lane>(device);
    return *lane;
  }

  void store(const std::shared_ptr<Transfer>& transfer) {
    Transfer& to = *transfer;
    to.on_host =
        at::empty_strided(to.sizes, to.strides, to.options.device(at::kCPU).pinned_memory(to.on_device.is_cuda()));
    to.stored = to_host_.run([&] { to.on_host.copy_(to.on_device, /*non_blocking=*/true); });
    to.to_device = to_device_;
    in_flight_.push_back(transfer);
    for (; in_flight_.size() > kInFlight; in_flight_.pop_front()) {
      if (const auto oldest = in_flight_.front().lock()) oldest->release();
    }
  }

 private:
  const c10::Device device_;
  const SideStream to_host_;
  const std::shared_ptr<const SideStream> to_device_;
  std::deque<std::weak_ptr<Transfer>> in_flight_;
};

OffloadedActivation::OffloadedActivation(const at::Tensor& tensor) : transfer_(std::make_shared<Transfer>(tensor)) {
  const at::NoGradGuard no_grad;
  if (tensor.is_meta()) {
    transfer_->on_device.reset();
  } else {
    Lane::of(tensor.device()).store(transfer_);
  }
}
OffloadedActivation::~OffloadedActivation() = default;

void OffloadedActivation::prefetch() const {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(transfer_->mutex);
  transfer_->fetch();
}

at::Tensor OffloadedActivation::take() const {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(transfer_->mutex);
  transfer_->fetch();
  const bool is_modified =
      transfer_->is_modified || (!transfer_->is_back && transfer_->on_device._version() != transfer_->version);
  D9D_CHECK(!is_modified, StateError, "[core::offload] an activation of shape ", at::IntArrayRef(transfer_->sizes),
            " was modified in place while it was copied to the host. Use the out-of-place operation, or do not offload "
            "this layer.");
  transfer_->fetched.wait();
  return transfer_->on_device.detach();  // a tensor of the caller's, which autograd may make an output of a graph
}

}  // namespace d9d
