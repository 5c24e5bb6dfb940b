// Exchanges rows of activations among tensor-parallel ranks of one machine while products compute: each rank copies the
// rows that it needs from the memory of the others, by copy engines, which use no multiprocessor. Streams wait for
// flags, never the hosts.
//
// A rank's PeerMemory block has two slots, used in turn. A rank writes the rows that others need to a slot and sets a
// flag (word) for each of them to the number of blocks that it has written; a reader waits for the flag, copies the
// blocks, and sets the flag back. Each exchange waits for rows of every rank, and a rank sets flags of the next
// exchange only after it has copied the rows of this one. So when a slot is used again, two exchanges later, all ranks
// have read it, and nothing needs to tell so. No number grows from step to step: a captured graph can be replayed, if
// its exchanges are even in number or another operation of the ranks, such as that of an embedding, is among them.
//
//   gather     shard -> slot, flags, copies of the others' shards   beside products of own rows, then of the others'
//   scatter    products of others' rows -> slot, flags, copies      beside products of own rows; then the sum
//
// Example
//   LinkWatch watch(mesh.world());
//   const auto exchange = std::make_shared<PeerRowExchange>(mesh.lane_communicator(), watch);
//   if (exchange->fits(x.numel(), x.scalar_type())) y = kernels::linears(x, {weight}, {}, {}, {.input = exchange});
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/core/peer_memory/link_watch.h"
#include "d9d/kernels/linear/row_exchange.h"
#include "d9d/parallelism/exchange/watched_peer_memory.h"

namespace d9d {

class PeerRowExchange final : public kernels::RowExchange {
 public:
  static constexpr bool kTakesMeta = false;

  // watch: borrowed.
  PeerRowExchange(std::shared_ptr<Communicator> ranks, LinkWatch& watch);

  // Collective. Whether shards [B, S / W, H] of so many elements can be exchanged. Opens memory for them at the first
  // call, and larger memory if they need it; the hosts wait then.
  [[nodiscard]] bool fits(std::int64_t num_elements, at::ScalarType dtype);
  void close() { memory_.close(); }  // Collective. See WatchedPeerMemory, as for the three below.
  [[nodiscard]] std::int64_t num_closings() const { return memory_.num_closings(); }
  [[nodiscard]] std::int64_t num_bytes() const { return memory_.num_bytes(); }
  [[nodiscard]] const std::string& reason() const { return memory_.reason(); }

  [[nodiscard]] at::Tensor gather(const at::Tensor& shard, const Block& arrived) const override;
  [[nodiscard]] at::Tensor gather_sequences(const at::Tensor& shard, const Block& complete) const override;
  [[nodiscard]] at::Tensor scatter(const Summand& summand, const Block& write,
                                   const std::function<void()>& meanwhile) const override;
  [[nodiscard]] std::int64_t num_ranks() const override { return ranks_->size(); }

 private:
  // The rows of a gather on their way.
  struct Arriving {
    at::Tensor own;                   // [B, S / W, H]
    at::Tensor whole;                 // [B, S, H]
    std::vector<StreamEvent> events;  // of the i-th other rank's rows of a sequence: (i - 1) * B + sequence
  };
  [[nodiscard]] Arriving begin_gather(const at::Tensor& shard) const;
  [[nodiscard]] std::int64_t next_slot() const;
  // The word that `owner` sets for `reader`.
  // Waits for block `index` of `owner`, and copies it to `target` from byte `offset` of its slot.
  void read(const at::Tensor& target, std::int64_t owner, std::int64_t slot, std::int64_t index,
            std::int64_t offset) const;

  std::shared_ptr<Communicator> ranks_;
  SideStream copies_;
  WatchedPeerMemory memory_;
  std::int64_t slot_bytes_ = 0;
  mutable std::int64_t num_exchanges_ = 0;
};

}  // namespace d9d
