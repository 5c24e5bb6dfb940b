#include "d9d/parallelism/fsdp/shard_reduce.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/parallelism/fsdp/peer_exchange.h"

namespace d9d {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{32} << 20;  // copied at a time, enough for full speed

}  // namespace

at::Tensor ShardReduce::allocate(std::int64_t num_bytes) {
  const at::TensorOptions options = at::TensorOptions(ranks_->device()).dtype(at::kByte);
  PeerExchange found = open_peer_exchange(method_, "reduce", ranks_, num_bytes, watch_);
  peers_ = std::move(found.peers);
  meeting_ = std::move(found.meeting);
  reason_ = std::move(found.reason);
  if (peers_ == nullptr) return at::empty({num_bytes}, options);
  return peers_->own();
}

std::string ShardReduce::description() const {
  return peers_ != nullptr ? copies_description(*ranks_) : cat("by reduce_scatter: ", reason_);
}

void ShardReduce::reduce(const at::Tensor& sum, const at::Tensor& full, bool adds) {
  if (peers_ != nullptr && full.storage().is_alias_of(peers_->own().storage())) return add_copies(sum, full, adds);
  const at::Tensor own = full.narrow(0, ranks_->rank() * sum.numel(), sum.numel());
  ranks_->reduce_scatter(adds ? own : sum, full, ReduceOp::kSum).wait();
  if (adds) sum.add_(own);
}

// Ranks read each other's gradients between two meetings, piece by piece: for a large unit, such as an
// embedding, the slices of all ranks together would take as much memory as the unit.
void ShardReduce::add_copies(const at::Tensor& sum, const at::Tensor& full, bool adds) {
  const std::int64_t most = kPieceBytes / sum.element_size();
  meeting_->meet();
  for (std::int64_t begin = 0; begin < sum.numel(); begin += most) {
    const std::int64_t numel = std::min(most, sum.numel() - begin);
    const at::Tensor own = full.narrow(0, ranks_->rank() * sum.numel() + begin, numel);
    add_piece(sum.narrow(0, begin, numel), own, adds);
  }
  meeting_->meet();
}

void ShardReduce::add_piece(const at::Tensor& sum, const at::Tensor& own, bool adds) {
  const std::int64_t num_ranks = ranks_->size();
  const auto bytes = static_cast<std::int64_t>(sum.nbytes());
  const std::int64_t offset = own.storage_offset() * own.element_size();
  if (!copies_.defined() || copies_.numel() < num_ranks * bytes) {
    copies_ = at::empty({num_ranks * bytes}, sum.options().dtype(at::kByte));
  }
  const auto copy_of = [&](std::int64_t rank) {
    return copies_.narrow(0, rank * bytes, bytes).view(sum.scalar_type());
  };
  const auto part_of = [&](std::int64_t rank) { return rank == ranks_->rank() ? own : copy_of(rank); };
  for (std::int64_t i = 1; i < num_ranks; ++i) {  // each rank begins with a different peer, to spread the load
    const std::int64_t rank = (ranks_->rank() + i) % num_ranks;
    peers_->read(copy_of(rank), rank, offset);
  }
  at::Tensor total = adds ? copy_of(ranks_->rank()) : sum;
  at::add_out(total, part_of(0), part_of(1));
  for (std::int64_t rank = 2; rank < num_ranks; ++rank) total.add_(part_of(rank));
  if (adds) sum.add_(total);
}

void ShardReduce::close() {
  if (auto meeting = std::exchange(meeting_, nullptr)) meeting->close();
  if (auto peers = std::exchange(peers_, nullptr)) peers->close();
  copies_ = at::Tensor();
}

}  // namespace d9d
