// How tensor parallelism lays a block out: where its parameters are, and which activations a rank has at its edges. A
// block declares its plan beside itself (Module::tensor_plan), and parallelize_tensor_parallel() places its parameters.
// Nothing gathers activations between blocks: a block gathers what it needs whole (set_tensor_parallel_context), and
// parallelize_decoder() refuses blocks of layers with other edges than kShard.
//
// Example
//   std::optional<TensorPlan> SwiGLU::tensor_plan(std::int64_t /*num_ranks*/) const {
//     return TensorPlan{.input = TensorPlan::Edge::kShard,
//                       .output = TensorPlan::Edge::kShard,
//                       .parameters = {{gate_proj->weight, Shard{0}}, {down_proj->weight, Shard{1}}}};
//   }
//
// Legend   B batch, S positions, W tensor-parallel ranks
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "d9d/core/dtensor/parameter.h"
#include "d9d/core/dtensor/placement.h"

namespace d9d {

// The dim of [B, S, ...] that context and tensor parallelism shard between blocks.
inline constexpr std::int64_t kPositions = 1;

struct TensorPlan {
  enum class Edge : std::uint8_t {
    kShard,  // [B, S / W, ...]: each rank has other positions
    kWhole,  // [B, S, ...]: the same on all ranks
  };
  // The gradient of a Shard is placed as the parameter. That of a Replicate is Partial(sum), because each rank computes
  // with other positions or other heads.
  struct PlacedParameter {
    ParameterPtr parameter;  // null: the block was built without it
    std::variant<Shard, Replicate> placement;
  };

  Edge input = Edge::kShard;
  Edge output = Edge::kShard;
  std::vector<PlacedParameter> parameters = {};  // of the block and of its children that have no plan of their own
};

}  // namespace d9d
