#include "d9d/parallelism/fsdp/shard_exchanges.h"

#include <algorithm>
#include <utility>

#include "d9d/base/rounding.h"
#include "d9d/parallelism/fsdp/flat_alignment.h"

namespace d9d {

void ShardExchanges::connect(const FsdpUnits& units, const FsdpConfig& config) {
  std::shared_ptr<World> world;
  for (const auto& unit : units) {
    for (const auto& group : unit->groups()) {
      group->connect();
      world = group->world();
      of(*group).slice_bytes += round_up(group->slice_bytes(), kFlatAlignmentBytes);
      const auto& ranks = group->replica_ranks();
      if (ranks != nullptr && std::ranges::find(replicas_, ranks) == replicas_.end()) replicas_.push_back(ranks);
    }
  }
  const auto watch = std::make_shared<LinkWatch>(std::move(world));
  for (ShardExchange& exchange : all_) {
    exchange.gather = make_shard_gather(config.gather, exchange.ranks, exchange.slice_bytes, watch);
    exchange.reduce = std::make_shared<ShardReduce>(config.reduce, exchange.ranks, watch);
  }
}

ShardExchange& ShardExchanges::of(const FlatGroup& group) {
  const auto found =
      std::ranges::find_if(all_, [&](const ShardExchange& each) { return each.ranks == group.shard_ranks(); });
  return found != all_.end() ? *found : all_.emplace_back(ShardExchange{.ranks = group.shard_ranks()});
}

}  // namespace d9d
