#include "d9d/core/collectives/position_ranks.h"

#include "d9d/core/collectives/differentiable.h"

namespace d9d {

at::Tensor sum_over_positions(const at::Tensor& here, const PositionRanks& ranks) {
  at::Tensor sum = here;
  if (ranks.of_shards.num_ranks() > 1) sum = all_reduce_forward(sum, ranks.of_shards.lane_communicator());
  if (ranks.of_context.num_ranks() > 1) sum = all_reduce_both(sum, ranks.of_context.ranks().lane_communicator());
  return sum;
}

}  // namespace d9d
