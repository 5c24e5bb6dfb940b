#include "d9d/parallelism/fsdp/shard_exchanges.h"

#include <algorithm>

#include "d9d/base/rounding.h"
#include "d9d/parallelism/fsdp/flat_alignment.h"

namespace d9d {

void ShardExchanges::connect(const FsdpUnits& units, const FsdpConfig& config) {
  for (const auto& unit : units) {
    for (const auto& group : unit->groups()) {
      group->connect();
      of(*group).slice_bytes += round_up(group->slice_bytes(), kFlatAlignmentBytes);
      const auto& ranks = group->replica_ranks();
      if (ranks != nullptr && std::ranges::find(replicas_, ranks) == replicas_.end()) replicas_.push_back(ranks);
    }
  }
  for (ShardExchange& exchange : all_) {
    exchange.gather = make_shard_gather(config.gather, exchange.ranks, exchange.slice_bytes);
    exchange.reduce = std::make_shared<ShardReduce>(config.reduce, exchange.ranks);
  }
}

ShardExchange& ShardExchanges::of(const FlatGroup& group) {
  const auto found =
      std::ranges::find_if(all_, [&](const ShardExchange& each) { return each.ranks == group.shard_ranks(); });
  return found != all_.end() ? *found : all_.emplace_back(ShardExchange{.ranks = group.shard_ranks()});
}

}  // namespace d9d
