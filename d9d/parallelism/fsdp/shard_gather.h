// How the slices that ranks keep of flat groups come together: those of all groups over one set of ranks.
//
// Example
//   const auto gather = make_shard_gather(ExchangeMethod::kAuto, ranks, /*num_bytes=*/slice_bytes_of_all_groups);
//   const at::Tensor slice = gather->allocate(slice_bytes);
//   ...                                         // this rank writes its slices
//   gather->begin();
//   gather->gather(full, slice);                // as often as a step needs
//   gather->end();
//   ...                                         // this rank writes its slices
//
// A rank that copies reads the slices of others while these compute, so in a step they must stay as they are: begin()
// comes after whatever wrote them, on any rank, and what writes them next comes after end(). Outside of begin() and
// end() a gather is an all_gather, which needs neither.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "d9d/core/communicator/communicator.h"
#include "d9d/parallelism/fsdp/fsdp_config.h"

namespace d9d {

// Legend   W ranks, n bytes of a slice. All on the current stream.
class ShardGather {
 public:
  virtual ~ShardGather() = default;
  [[nodiscard]] virtual std::string description() const = 0;  // "by all_gather: ...", for the log

  // Memory for a slice: kByte [num_bytes], zeros, at a multiple of 256 bytes. In the same order on all ranks.
  [[nodiscard]] virtual at::Tensor allocate(std::int64_t num_bytes) = 0;

  // Local. Whether gather() now waits for the other ranks' gather().
  [[nodiscard]] virtual bool is_collective() const { return true; }
  // Collective. Later work of the current stream sees what the current streams of all ranks have written so far.
  virtual void begin() = 0;
  // Collective. full [W * n] <- slice [n] of all ranks; slice is a whole allocation. Views of any dtype.
  virtual void gather(const at::Tensor& full, const at::Tensor& slice) = 0;
  // Collective. Later work of the current stream may write the slices: nobody reads them any more. Only after begin().
  virtual void end() = 0;
  // Local. After an exception: as if end() had been called; what was gathered is not used. Others may read slices until
  // they have abandoned too.
  virtual void abandon() = 0;
  // Collective, outside of begin() and end(). Lets go of what ranks hold of each other's memory, so that the slices can
  // be freed, or offloaded and brought back; the next begin() takes it again.
  virtual void close() = 0;
};

// Collective. num_bytes: that allocate() will be asked for in all, each slice rounded up to 256. Throws ConfigError,
// with the reason, when copies are asked for and impossible.
[[nodiscard]] std::unique_ptr<ShardGather> make_shard_gather(ExchangeMethod method, std::shared_ptr<Communicator> ranks,
                                                             std::int64_t num_bytes);

}  // namespace d9d
