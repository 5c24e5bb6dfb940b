// Sums full gradients over ranks; each rank keeps one slice of the sum. One object serves all groups that are sharded
// over the same ranks.
//
// Example
//   ShardReduce reduce(ExchangeMethod::kAuto, ranks, watch);
//   const at::Tensor full = reduce.allocate(num_bytes).view(at::kFloat);     // [W * n]
//   ...                                                                       // this rank writes its gradient
//   reduce.reduce(sum, full, /*adds=*/false);                                 // sum [n]
//   ...                                                                       // full may be written again
//
// Gradients are summed by a reduce_scatter, or, if they are in memory that allocate() opened to peers, by copies: each
// rank copies its slice of the other ranks' gradients, by copy engines that use no multiprocessor, and adds the slices
// in the order of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/peer_memory/link_watch.h"
#include "d9d/core/peer_memory/peer_memory.h"
#include "d9d/parallelism/exchange/stream_meeting.h"
#include "d9d/parallelism/fsdp/fsdp_config.h"

namespace d9d {

// Legend   W ranks, n elements of a slice. All functions use the current stream.
class ShardReduce {
 public:
  ShardReduce(ExchangeMethod method, std::shared_ptr<Communicator> ranks, std::shared_ptr<LinkWatch> watch)
      : method_(method), ranks_(std::move(ranks)), watch_(std::move(watch)) {}

  // Collective; may be called once, and again after close(). Returns kByte [num_bytes], uninitialised. Throws
  // ConfigError, with the reason, if the method demands copies and they are impossible.
  [[nodiscard]] at::Tensor allocate(std::int64_t num_bytes);
  [[nodiscard]] std::string description() const;  // "by reduce_scatter: ...", for the log; after allocate()

  // Collective. Writes the sum over ranks of this rank's slice [n] of `full` [W * n] to sum [n], or adds it there if
  // `adds`. May change `full`, which later work of the current stream may overwrite.
  void reduce(const at::Tensor& sum, const at::Tensor& full, bool adds);

  // Collective, when no reduction is outstanding. Releases the memory; allocate() allocates it again.
  void close();

 private:
  void add_copies(const at::Tensor& sum, const at::Tensor& full, bool adds);
  void add_piece(const at::Tensor& sum, const at::Tensor& own, bool adds);

  ExchangeMethod method_;
  std::shared_ptr<Communicator> ranks_;
  std::shared_ptr<LinkWatch> watch_;
  std::string reason_;
  std::shared_ptr<PeerMemory> peers_;  // null: sums by reduce_scatter
  std::unique_ptr<StreamMeeting> meeting_;
  at::Tensor copies_;  // kByte: other ranks' gradients of a piece of this rank's slice
};

}  // namespace d9d
