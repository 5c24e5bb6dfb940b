#include "d9d/core/device/host_copy.h"

#include <utility>

#include <ATen/ATen.h>

#include "d9d/core/communicator/world.h"

namespace d9d {

HostCopy::HostCopy(at::Tensor values, const SideStream& copies, std::shared_ptr<const World> crossed)
    : values_(std::move(values)), crossed_(std::move(crossed)) {
  if (values_.is_cpu()) {
    on_host_ = values_;
    return;
  }
  const auto options = values_.options().device(at::kCPU).pinned_memory(true);
  on_host_ = at::empty(values_.sizes(), options);
  copied_ = copies.run([&] { on_host_.copy_(values_, /*non_blocking=*/true); });
}

const at::Tensor& HostCopy::wait() const {
  copied_.synchronize();
  if (crossed_) crossed_->throw_if_failed();
  return on_host_;
}

}  // namespace d9d
