#include "d9d/core/peer_memory/meta_peer_memory.h"

#include <vector>

#include <ATen/ATen.h>

namespace d9d {
namespace {

class MetaPeerMemory final : public PeerMemory {
 public:
  MetaPeerMemory(std::int64_t num_bytes, std::int64_t num_shared_bytes)
      : own_(at::empty({num_bytes}, at::TensorOptions(at::kMeta).dtype(at::kByte))),
        shared_(static_cast<std::size_t>(num_shared_bytes)) {}

  [[nodiscard]] const at::Tensor& own() const override { return own_; }
  void read(const at::Tensor& /*target*/, std::int64_t /*rank*/, std::int64_t /*offset*/) const override {}
  void write(const at::Tensor& /*source*/, std::int64_t /*rank*/, std::int64_t /*offset*/) const override {}
  [[nodiscard]] std::byte* shared() const override { return shared_.data(); }
  void raise(std::int64_t /*word*/, std::uint32_t /*value*/) const override {}
  void raise_at_once(std::int64_t /*word*/, std::uint32_t /*value*/) const override {}
  void wait_for(std::int64_t /*word*/, std::uint32_t /*value*/) const override {}
  [[nodiscard]] bool is_raised(std::int64_t /*word*/, std::uint32_t /*value*/) const override { return false; }
  void close() override { own_.reset(); }
  void leave() override { own_.reset(); }

 private:
  at::Tensor own_;
  mutable std::vector<std::byte> shared_;
};

}  // namespace

std::shared_ptr<PeerMemory> open_meta_peer_memory(std::int64_t num_bytes, std::int64_t num_shared_bytes) {
  return std::make_shared<MetaPeerMemory>(num_bytes, num_shared_bytes);
}

}  // namespace d9d
