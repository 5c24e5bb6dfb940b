#include "d9d/core/peer_memory/host_peer_memory.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <vector>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

// Shared by all ranks: the words, and a condition variable that signals changes of them.
struct Shared {
  explicit Shared(std::int64_t num_bytes) : bytes(static_cast<std::size_t>(num_bytes)) {}

  std::vector<std::byte> bytes;
  std::mutex mutex;
  std::condition_variable raised;

  [[nodiscard]] std::uint32_t& word(std::int64_t offset) {
    return *reinterpret_cast<std::uint32_t*>(bytes.data() + offset);
  }
  [[nodiscard]] bool is_raised(std::int64_t offset, std::uint32_t value) {
    return static_cast<std::int32_t>(word(offset) - value) >= 0;
  }
};

// The block of one rank. All ranks use the Shared of the first rank's block.
struct Block {
  Block(std::int64_t num_bytes, std::int64_t num_shared_bytes)
      : bytes(at::zeros({num_bytes}, at::kByte)), shared(std::make_shared<Shared>(num_shared_bytes)) {}

  const at::Tensor bytes;
  const std::shared_ptr<Shared> shared;

  [[nodiscard]] std::uint8_t* at(std::int64_t offset) const { return bytes.mutable_data_ptr<std::uint8_t>() + offset; }
};

// A loop, which compilers turn into a memcpy: ThreadSanitizer checks this loop but not memcpy itself.
void copy_bytes(std::uint8_t* to, const std::uint8_t* from, std::size_t num_bytes) {
  for (std::size_t i = 0; i < num_bytes; ++i) to[i] = from[i];
}

class HostPeerMemory final : public PeerMemory {
 public:
  // blocks: by rank.
  HostPeerMemory(std::shared_ptr<Communicator> ranks, std::vector<std::shared_ptr<Block>> blocks)
      : ranks_(std::move(ranks)), blocks_(std::move(blocks)), shared_(blocks_.front()->shared) {
    const at::Tensor& own = block_of(ranks_->rank()).bytes;
    own_ = at::from_blob(
        own.mutable_data_ptr(), own.sizes(), [owner = own](void*) mutable { owner.reset(); }, own.options());
  }

  [[nodiscard]] const at::Tensor& own() const override { return own_; }

  void read(const at::Tensor& target, std::int64_t rank, std::int64_t offset) const override {
    copy_bytes(static_cast<std::uint8_t*>(target.mutable_data_ptr()), block_of(rank).at(offset), target.nbytes());
  }

  void write(const at::Tensor& source, std::int64_t rank, std::int64_t offset) const override {
    copy_bytes(block_of(rank).at(offset), static_cast<const std::uint8_t*>(source.const_data_ptr()), source.nbytes());
  }

  [[nodiscard]] std::byte* shared() const override { return shared_->bytes.data(); }

  void raise(std::int64_t word, std::uint32_t value) const override { raise_at_once(word, value); }

  void raise_at_once(std::int64_t word, std::uint32_t value) const override {
    const std::lock_guard lock(shared_->mutex);
    shared_->word(word) = value;
    shared_->raised.notify_all();
  }

  void wait_for(std::int64_t word, std::uint32_t value) const override {
    constexpr std::chrono::milliseconds kCheckPeriod{50};  // between two checks whether the group has failed
    std::unique_lock lock(shared_->mutex);
    while (!shared_->raised.wait_for(lock, kCheckPeriod, [&] { return shared_->is_raised(word, value); })) {
      ranks_->throw_if_rank_is_gone();
    }
  }

  [[nodiscard]] bool is_raised(std::int64_t word, std::uint32_t value) const override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->is_raised(word, value);
  }

  void close() override {
    ranks_->barrier();
    blocks_.clear();
    ranks_->barrier();  // afterwards no rank holds a block of another, so that own() is the last to hold its memory
  }

  void leave() override { blocks_.clear(); }

 private:
  [[nodiscard]] static std::size_t index_of(std::int64_t rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] Block& block_of(std::int64_t rank) const {
    D9D_CHECK(!blocks_.empty(), StateError, "[core::peer_memory] expected a call before close(), got one after it.");
    return *blocks_[index_of(rank)];
  }

  std::shared_ptr<Communicator> ranks_;
  std::vector<std::shared_ptr<Block>> blocks_;  // a rank that fails leaves its block to the others
  std::shared_ptr<Shared> shared_;
  at::Tensor own_;  // a tensor over its block's memory: moving its storage does not change the block
};

// Offers a rank's block to all ranks. The last rank that takes it deletes the offer, because the offering rank may have
// failed by then and left the stack on which it opened the memory. If a rank fails before it takes the block, the offer
// is never deleted.
struct Offer {
  const std::shared_ptr<Block> block;
  std::atomic<std::int64_t> num_takers;
};

std::shared_ptr<Block> take(Offer* offer) {
  std::shared_ptr<Block> block = offer->block;
  if (--offer->num_takers == 0) delete offer;
  return block;
}

}  // namespace

std::shared_ptr<PeerMemory> open_host_peer_memory(const std::shared_ptr<Communicator>& ranks, std::int64_t num_bytes,
                                                  std::int64_t num_shared_bytes) {
  Offer* const offer =
      new Offer{.block = std::make_shared<Block>(num_bytes, num_shared_bytes), .num_takers = ranks->size()};
  const at::Tensor address = at::tensor({reinterpret_cast<std::int64_t>(offer)}, at::kLong);
  const at::Tensor addresses = at::empty({ranks->size()}, at::kLong);
  ranks->all_gather(addresses, address).wait();
  std::vector<std::shared_ptr<Block>> blocks;
  for (std::int64_t rank = 0; rank < ranks->size(); ++rank) {
    blocks.push_back(take(reinterpret_cast<Offer*>(addresses.const_data_ptr<std::int64_t>()[rank])));
  }
  return std::make_shared<HostPeerMemory>(ranks, std::move(blocks));
}

}  // namespace d9d
