#include "d9d/parallelism/fsdp/gather_arena.h"

#include <ATen/ATen.h>

namespace d9d {
namespace {

std::int64_t largest_pair(const std::vector<std::int64_t>& bytes) {
  std::int64_t largest = bytes.empty() ? 0 : bytes.front();
  for (std::size_t i = 1; i < bytes.size(); ++i) largest = std::max(largest, bytes[i - 1] + bytes[i]);
  return largest;
}

}  // namespace

GatherArena::GatherArena(std::vector<std::int64_t> unit_bytes, at::Device device)
    : unit_bytes_(std::move(unit_bytes)), device_(device), num_bytes_(largest_pair(unit_bytes_)) {}

at::Tensor GatherArena::acquire(std::size_t unit) {
  auto& holder = holders_[unit % 2];
  const std::int64_t bytes = unit_bytes_[unit];
  const auto& other = holders_[1 - unit % 2];
  const std::int64_t taken = other ? unit_bytes_[*other] : 0;  // units that are not neighbours may not fit together
  const at::TensorOptions options = at::TensorOptions(device_).dtype(at::kByte);
  if (holder || bytes + taken > num_bytes_) return at::empty({bytes}, options);
  if (!memory_.defined()) memory_ = at::empty({num_bytes_}, options);
  holder = unit;
  return memory_.narrow(0, unit % 2 == 0 ? 0 : num_bytes_ - bytes, bytes);
}

void GatherArena::release(std::size_t unit) {
  auto& holder = holders_[unit % 2];
  if (holder == unit) holder.reset();
}

}  // namespace d9d
