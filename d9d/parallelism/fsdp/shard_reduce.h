// How the full gradients of units become sums of which each rank keeps a slice: those of all groups over one set of
// ranks.
//
// Example
//   ShardReduce reduce(ExchangeMethod::kAuto, ranks);
//   const at::Tensor full = reduce.allocate(num_bytes).view(at::kFloat);     // [W * n]
//   ...                                                                       // this rank writes its gradient
//   reduce.reduce(sum, full, /*adds=*/false);                                 // sum [n]
//   ...                                                                       // full may be written again
//
// By a reduce_scatter; or, for what lies in allocate()'s memory, by copies: each rank copies its slice of the gradients
// of the others, so that communication holds no multiprocessor, and adds them up in the order of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/peer_memory/peer_memory.h"
#include "d9d/parallelism/fsdp/fsdp_config.h"

namespace d9d {

// Legend   W ranks, n elements of a slice. All on the current stream.
class ShardReduce {
 public:
  ShardReduce(ExchangeMethod method, std::shared_ptr<Communicator> ranks) : method_(method), ranks_(std::move(ranks)) {}

  // Collective; once until close(). kByte [num_bytes], values undefined. Throws ConfigError, with the reason, when
  // copies are asked for and impossible.
  [[nodiscard]] at::Tensor allocate(std::int64_t num_bytes);
  [[nodiscard]] std::string description() const;  // "by reduce_scatter: ...", for the log; after allocate()

  // Collective. sum [n] <- the sum over ranks of their part [n] for this rank of `full` [W * n]; with `adds`, is added.
  // Later work of the current stream may overwrite `full`.
  void reduce(const at::Tensor& sum, const at::Tensor& full, bool adds);

  // Collective, while nothing is to be reduced: lets go of memory. allocate() takes it again.
  void close();

 private:
  void meet();
  void add_copies(const at::Tensor& sum, const at::Tensor& full, bool adds);

  ExchangeMethod method_;
  std::shared_ptr<Communicator> ranks_;
  std::string reason_;
  std::shared_ptr<PeerMemory> peers_;  // null: by reduce_scatter
  at::Tensor copies_;                  // kByte, the slices of the other ranks
  at::Tensor token_;
};

}  // namespace d9d
