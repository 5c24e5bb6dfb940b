#include "d9d/pipelining/executor/message_layout.h"

#include "d9d/base/rounding.h"

namespace d9d {
namespace {

constexpr std::int64_t kAlignmentBytes = 16;  // each leaf of a message begins at a multiple of this

}  // namespace

std::int64_t message_bytes(const std::vector<at::Tensor>& like) {
  std::int64_t bytes = 0;
  for (const at::Tensor& leaf : like) {
    bytes += round_up(static_cast<std::int64_t>(leaf.numel() * leaf.element_size()), kAlignmentBytes);
  }
  return bytes;
}

at::Tensor contiguous_values(const at::Tensor& leaf) { return leaf.resolve_conj().resolve_neg().contiguous(); }

std::vector<at::Tensor> parts_of(const at::Tensor& message, const std::vector<at::Tensor>& like) {
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (const at::Tensor& leaf : like) {
    const auto bytes = static_cast<std::int64_t>(leaf.numel() * leaf.element_size());
    // variable_data() gives each part a version counter of its own.
    parts.push_back(message.narrow(0, begin, bytes).view(leaf.scalar_type()).view(leaf.sizes()).variable_data());
    begin += round_up(bytes, kAlignmentBytes);
  }
  return parts;
}

}  // namespace d9d
