// The communication of the sharded units of a stage: one ShardExchange for each set of ranks over which flat groups are
// sharded.
//
// Example
//   ShardExchanges exchanges;
//   exchanges.connect(units, config);                      // collective
//   exchanges.of(*group).gather->gather(full, slice);
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "d9d/core/communicator/communicator.h"
#include "d9d/parallelism/fsdp/fsdp_config.h"
#include "d9d/parallelism/fsdp/fsdp_unit.h"
#include "d9d/parallelism/fsdp/shard_gather.h"
#include "d9d/parallelism/fsdp/shard_reduce.h"

namespace d9d {

struct ShardExchange {
  std::shared_ptr<Communicator> ranks;
  std::int64_t slice_bytes = 0;  // sum over the groups that are sharded over these ranks
  std::shared_ptr<ShardGather> gather = nullptr;
  std::shared_ptr<ShardReduce> reduce = nullptr;
};

class ShardExchanges {
 public:
  // Collective. Obtains the communicators of all groups and makes the exchanges.
  void connect(const FsdpUnits& units, const FsdpConfig& config);

  [[nodiscard]] ShardExchange& of(const FlatGroup& group);
  [[nodiscard]] const std::vector<ShardExchange>& all() const { return all_; }  // in the order of first use by units
  // The sets of ranks over which some groups are replicated, in the order of first use by units.
  [[nodiscard]] const std::vector<std::shared_ptr<Communicator>>& replicas() const { return replicas_; }

 private:
  std::vector<ShardExchange> all_;
  std::vector<std::shared_ptr<Communicator>> replicas_;
};

}  // namespace d9d
