// Shows each rank the tensors of all ranks, one rank after another, and gives each rank the sum of what all ranks make
// of its tensors. Blocks are copied between the memory of ranks of one machine by copy engines, which use no
// multiprocessor, while earlier blocks are computed with. Streams wait for words, never the hosts.
//
//   own tensors -> slot, words     the others copy them from there, two blocks ahead of what they compute
//   contributions -> the memory of the rank whose tensors they belong to, word    it adds them up at the end
//
// Two slots, used in turn, need no word that tells that one is free: a rank sets the words of its next visit only when
// it has copied all blocks of this one, and it has finished this one only when all have set theirs. Likewise there are
// two places for contributions: a rank sends those of its next sum after it has added up those of this one.
//
// Example
//   exchange->visit({k, v}, [&](std::int64_t rank, const PeerBlockExchange::Tensors& theirs) { attend(theirs); });
//
// Legend   W ranks
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/core/dtensor/layout.h"
#include "d9d/core/peer_memory/link_watch.h"
#include "d9d/parallelism/exchange/watched_peer_memory.h"

namespace d9d {

class PeerBlockExchange {
 public:
  static constexpr bool kTakesMeta = true;
  using Tensors = std::vector<at::Tensor>;  // as many, [B, S, ...] with the same shapes and dtypes, on all ranks

  // watch: borrowed.
  PeerBlockExchange(std::shared_ptr<Communicator> ranks, LinkWatch& watch);

  // Collective. Whether tensors of these shapes and dtypes can be exchanged; see WatchedPeerMemory.
  [[nodiscard]] bool fits(const Tensors& own);
  void close() { memory_.close(); }
  [[nodiscard]] std::int64_t num_closings() const { return memory_.num_closings(); }
  [[nodiscard]] std::int64_t num_bytes() const { return memory_.num_bytes(); }
  [[nodiscard]] const std::string& reason() const { return memory_.reason(); }

  // Collective. Calls `see` once with the tensors of each rank: this rank's, then those of rank - 1, rank - 2 and so
  // on. Those of others are contiguous, and valid for work that the call queues on the current stream; with two ranks
  // they stay as they are.
  using See = std::function<void(std::int64_t rank, const Tensors& theirs)>;
  void visit(const Tensors& own, const See& see) const;
  // The positions, of dim 1, of the tensors of `owner` to which `writer` contributes: the same on all ranks, and all
  // where both are one rank.
  using RangeOf = std::function<FlatRange(std::int64_t writer, std::int64_t owner)>;
  // Collective. Calls `make` once for each rank, this one last. It returns what this rank contributes to those
  // positions of the tensors of `rank`. Returns the sums of what all ranks contribute to this rank's, computed in at
  // least float, in the tensors that `make` returned for this rank.
  using Make = std::function<Tensors(std::int64_t rank)>;
  [[nodiscard]] Tensors sum(const RangeOf& range_of, const Make& make) const;
  // Collective. Both: each call sees the tensors of a rank, this one's first, and returns contributions to them, in
  // other memory than theirs.
  using SeeAndMake = std::function<Tensors(std::int64_t rank, const Tensors& theirs)>;
  [[nodiscard]] Tensors visit_and_sum(const Tensors& own, const RangeOf& range_of, const SeeAndMake& make) const;

 private:
  void send(const Tensors& contributions, const FlatRange& positions, std::int64_t owner, std::int64_t sum) const;
  void add_received(const Tensors& contributions, const RangeOf& range_of, std::int64_t sum) const;
  [[nodiscard]] std::int64_t other(std::int64_t i) const;  // rank - i
  // The first byte of the contributions of `writer` in the block of `owner`. sum: 0 or 1.
  [[nodiscard]] std::int64_t place_of(std::int64_t writer, std::int64_t owner, std::int64_t sum) const;

  std::shared_ptr<Communicator> ranks_;
  SideStream copies_;
  SideStream sends_;
  WatchedPeerMemory memory_;
  std::int64_t part_bytes_ = 0;  // of the tensors of one rank
  mutable std::int64_t num_visits_ = 0;
  mutable std::int64_t num_sums_ = 0;
};

}  // namespace d9d
