#include "d9d/core/device/kept_tensors.h"

#include <algorithm>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace d9d {
namespace {

c10::Stream stream_now(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

}  // namespace

void KeptTensors::keep(std::vector<at::Tensor> tensors, StreamEvent read) {
  if (tensors.empty()) return;
  const c10::Device device = tensors.front().device();
  if (device.is_cpu() || device.is_meta()) return;
  kept_.push_back({.tensors = std::move(tensors), .read = std::move(read), .made_on = stream_now(device)});
}

// Makes the current stream wait for the reader. If the tensors belong to another stream, tells the allocator that the
// current stream has used them.
void KeptTensors::drop(const Kept& kept) {
  kept.read.wait();
  for (const at::Tensor& tensor : kept.tensors) keep_for_current_stream(tensor);
}

void KeptTensors::wait_for_all_but(std::size_t most) {
  if (kept_.empty()) return;
  const c10::Stream current = stream_now(kept_.front().made_on.device());
  const auto is_own = [&](const Kept& kept) { return kept.made_on == current; };
  auto num_own = static_cast<std::size_t>(std::ranges::count_if(kept_, is_own));
  for (auto kept = kept_.begin(); num_own > most;) {
    if (!is_own(*kept)) {
      ++kept;
      continue;
    }
    drop(*kept);
    kept = kept_.erase(kept);
    --num_own;
  }
}

void KeptTensors::wait_for_all() {
  for (; !kept_.empty(); kept_.pop_front()) drop(kept_.front());
}

}  // namespace d9d
