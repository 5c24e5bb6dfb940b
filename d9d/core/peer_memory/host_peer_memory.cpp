#include "d9d/core/peer_memory/host_peer_memory.h"

#include <vector>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

class HostPeerMemory final : public PeerMemory {
 public:
  // blocks: by rank.
  HostPeerMemory(std::shared_ptr<Communicator> ranks, std::vector<at::Tensor> blocks)
      : ranks_(std::move(ranks)), blocks_(std::move(blocks)) {
    const at::Tensor& own = blocks_[static_cast<std::size_t>(ranks_->rank())];
    own_ = at::from_blob(
        own.mutable_data_ptr(), own.sizes(), [owner = own](void*) mutable { owner.reset(); }, own.options());
  }

  [[nodiscard]] const at::Tensor& own() const override { return own_; }

  void read(const at::Tensor& target, std::int64_t rank, std::int64_t offset) const override {
    D9D_CHECK(!blocks_.empty(), StateError, "[core::peer_memory] expected a read before close(), got one after it.");
    const auto* const from = blocks_[static_cast<std::size_t>(rank)].const_data_ptr<std::uint8_t>() + offset;
    auto* const to = static_cast<std::uint8_t*>(target.mutable_data_ptr());
    // A loop, which compilers turn into a memcpy: ThreadSanitizer checks this loop but not memcpy itself.
    for (std::size_t i = 0; i < target.nbytes(); ++i) to[i] = from[i];
  }

  void close() override {
    ranks_->barrier();
    blocks_.clear();
  }

 private:
  std::shared_ptr<Communicator> ranks_;
  std::vector<at::Tensor> blocks_;  // a rank that fails leaves its block to the others
  at::Tensor own_;                  // a tensor over its block's memory: moving its storage does not change the block
};

}  // namespace

std::shared_ptr<PeerMemory> open_host_peer_memory(const std::shared_ptr<Communicator>& ranks, std::int64_t num_bytes) {
  const at::Tensor block = at::zeros({num_bytes}, at::kByte);
  const at::Tensor address = at::tensor({reinterpret_cast<std::int64_t>(&block)}, at::kLong);
  const at::Tensor addresses = at::empty({ranks->size()}, at::kLong);
  ranks->all_gather(addresses, address).wait();
  std::vector<at::Tensor> blocks;
  for (std::int64_t rank = 0; rank < ranks->size(); ++rank) {
    blocks.push_back(*reinterpret_cast<const at::Tensor*>(addresses.const_data_ptr<std::int64_t>()[rank]));
  }
  ranks->barrier();  // until all have arrived, every rank's `block` must stay at its address
  return std::make_shared<HostPeerMemory>(ranks, std::move(blocks));
}

}  // namespace d9d
