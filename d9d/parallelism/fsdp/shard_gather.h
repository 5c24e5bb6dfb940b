// Gathers the slices of flat groups. One object serves all groups that are sharded over the same ranks.
//
// Example
//   const auto gather = make_shard_gather(ExchangeMethod::kAuto, ranks, /*num_bytes=*/bytes_of_all_slices, watch);
//   const at::Tensor slice = gather->allocate(slice_bytes);
//   ...                                         // this rank writes its slices
//   gather->begin();
//   gather->gather(full, slice);                // any number of times in a step
//   gather->end();
//   ...                                         // this rank writes its slices
//
// A rank that copies reads the slices of other ranks while those compute, so slices must not be written within a step:
// call begin() after all writes to them, on every rank, and write them again only after end(). Outside of begin() and
// end() a gather is an all_gather, which has no such restriction.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/peer_memory/link_watch.h"
#include "d9d/parallelism/fsdp/fsdp_config.h"

namespace d9d {

// Legend   W ranks, n bytes of a slice. All functions use the current stream.
class ShardGather {
 public:
  virtual ~ShardGather() = default;
  [[nodiscard]] virtual std::string description() const = 0;  // "by all_gather: ...", for the log

  // Returns memory for a slice: kByte [num_bytes], zeros, aligned to 256 bytes. All ranks must allocate slices in the
  // same order.
  [[nodiscard]] virtual at::Tensor allocate(std::int64_t num_bytes) = 0;

  // Local. Returns whether gather() currently waits for the other ranks' gather().
  [[nodiscard]] virtual bool is_collective() const { return true; }
  // Collective. Later work of the current stream sees all that the current streams of all ranks have written before.
  virtual void begin() = 0;
  // Collective if is_collective(). Writes the slices [n] of all ranks to full [W * n]. slice is a whole allocation;
  // both may be views of any dtype.
  virtual void gather(const at::Tensor& full, const at::Tensor& slice) = 0;
  // Collective, after begin(). Later work of the current stream may write the slices, because no rank reads them any
  // more.
  virtual void end() = 0;
  // Local. Ends the step after an exception, without end(); gathered values must not be used. Other ranks may still
  // read slices until they have abandoned the step too.
  virtual void abandon() = 0;
  // Collective, outside of begin() and end(). Closes the ranks' access to each other's memory, so that the slices can
  // be freed or offloaded; the next begin() opens it again.
  virtual void close() = 0;
};

// Collective. num_bytes: the sum of all sizes that allocate() will be asked for, each rounded up to 256. Throws
// ConfigError, with the reason, if `method` demands copies and they are impossible.
[[nodiscard]] std::unique_ptr<ShardGather> make_shard_gather(ExchangeMethod method, std::shared_ptr<Communicator> ranks,
                                                             std::int64_t num_bytes, std::shared_ptr<LinkWatch> watch);

}  // namespace d9d
